//! The suite's images, made here and served by the node's own registry under the suite's names.
//!
//! What comes in: the list of images that the suite prints, the programs of the suite's images (compiled from
//! upstream's sources), the host's static busybox and bash. What goes out: images in a registry's directory; for a
//! native node in its own registry, and a containerd that finds `registry.k8s.io` only there. Images without a recipe
//! are missing, and their tests fail with this reason. Invariant: names and tags are the suite's own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::build::Target;
use crate::cluster::programs::{self, Suite};
use crate::native::blobs::{Blob, Blobs};
use crate::native::node::NativeNode;
use crate::native::{config, images as host};
use crate::run::Run;

/// The registry whose images are served.
pub const REGISTRY: &str = "registry.k8s.io";
/// The image by which the suite logs in to a node, and its tag.
pub const LOGIN: (&str, &str) = ("orlop/sshd", "1");
/// Images of the node's suite that the suite does not list: its manifests name them
/// (test/e2e/testing-manifests/sample-device-plugin).
pub const OF_MANIFESTS: &str = "registry.k8s.io/e2e-test-images/sample-device-plugin:1.7\n";
/// The image that the suite's own registry (a pod of agnhost) serves, and its tag there.
const INNER: (&str, &str) = ("pause", "testing");
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Contents of an image that the suite expects: the files of a shell image, and additions for some images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    Busybox,
    Agnhost,
    NoNewPrivs,
    NonRoot,
    Nginx,
    Pause,
    DevicePlugin,
    /// Files that a volume shows.
    Kitten,
}

/// The recipe for an image by the last part of its name.
fn recipe(name: &str) -> Option<Recipe> {
    Some(match name.rsplit('/').next()? {
        // The suite uses only the shell of the second image.
        "busybox" | "glibc-dns-testing" => Recipe::Busybox,
        "agnhost" => Recipe::Agnhost,
        "nonewprivs" => Recipe::NoNewPrivs,
        "nonroot" => Recipe::NonRoot,
        "nginx" => Recipe::Nginx,
        "pause" => Recipe::Pause,
        "sample-device-plugin" => Recipe::DevicePlugin,
        "kitten" => Recipe::Kitten,
        _ => return None,
    })
}

/// Repositories and tags of the registry that is served, out of the suite's list.
fn parse(list: &str) -> Vec<(&str, &str)> {
    let of_registry = |line: &'_ str| -> Option<(usize, usize)> {
        let rest = line.strip_prefix(REGISTRY)?.strip_prefix('/')?;
        Some((line.len() - rest.len(), rest.rfind(':')?))
    };
    list.lines()
        .map(str::trim)
        .filter_map(|line| {
            of_registry(line).map(|(start, at)| (&line[start..start + at], &line[start + at + 1..]))
        })
        .collect()
}

/// Makes the images of `list` that have a recipe, in a registry's directory.
///
/// # Errors
/// If a program is missing, the directory cannot be written, or no image has a recipe.
pub fn make(run: &Arc<Run>, dir: &Path, suite: &Suite, list: &str) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    let made = Trees { run, suite, blobs, dir }.make(list)?;
    anyhow::ensure!(made > 0, "the suite's list of images has none of {REGISTRY}:\n{list}");
    Ok(())
}

/// Makes the images in the node's own registry, and configures its containerd for them.
///
/// # Errors
/// As [`make`], or the node's directory cannot be written.
pub fn serve(run: &Arc<Run>, node: &NativeNode, suite: &Suite, list: &str) -> Result<()> {
    make(run, &node.inside("/run/e2e/registry"), suite, list)?;
    let hosts = format!("/run/e2e/certs.d/{REGISTRY}");
    fs::create_dir_all(node.inside(&hosts)).with_context(|| format!("make {hosts} in the node"))?;
    let hosts = format!("{hosts}/hosts.toml");
    fs::write(node.inside(&hosts), config::registry_hosts())
        .with_context(|| format!("write {hosts} in the node"))
}

struct Trees<'a> {
    run: &'a Arc<Run>,
    suite: &'a Suite,
    blobs: Blobs<'a>,
    dir: &'a Path,
}

impl Trees<'_> {
    fn make(&self, list: &str) -> Result<usize> {
        let shell = self.layer(shell)?;
        let pause = self.layer(|tree| self.program(Target::Pause, &tree.join("pause"), 0o755))?;
        let config = json!({"Env": [PATH], "Entrypoint": ["/pause"], "User": "65535:65535"});
        let inner = self.blobs.image(INNER.0, INNER.1, &config, std::slice::from_ref(&pause))?;
        let agnhost = self.layer(|tree| {
            self.program(Target::Agnhost, &tree.join("agnhost"), 0o755)?;
            self.inner_registry(&tree.join("var/registry"), &inner)?;
            self.program(Target::Curl, &tree.join("usr/bin/curl"), 0o755)?;
            agnhost(tree)
        })?;
        let nnp =
            self.layer(|tree| self.program(Target::NoNewPrivs, &tree.join("usr/local/bin/nnp"), 0o4755))?;
        let nginx = self.layer(nginx)?;
        let kitten = self.layer(kitten)?;
        let login = self.layer(|tree| self.program(Target::Sshd, &tree.join("sshd"), 0o755))?;
        self.blobs.image(
            LOGIN.0,
            LOGIN.1,
            &json!({"Entrypoint": ["/sshd"]}),
            std::slice::from_ref(&login),
        )?;
        let plugin = self.device_plugin(list)?;
        let mut made = 0;
        for (name, tag) in parse(list) {
            let Some(recipe) = recipe(name) else { continue };
            let (more, layers): (Value, Vec<&Blob>) = match recipe {
                Recipe::Busybox => (json!({"Cmd": ["sh"]}), vec![&shell]),
                Recipe::Agnhost => {
                    (json!({"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}), vec![&shell, &agnhost])
                }
                Recipe::NoNewPrivs => (json!({"Cmd": ["nnp"]}), vec![&shell, &nnp]),
                Recipe::NonRoot => (json!({"Cmd": ["sh"], "User": "1234"}), vec![&shell]),
                Recipe::Nginx => (json!({"Cmd": ["nginx"]}), vec![&shell, &nginx]),
                Recipe::Pause => (json!({"Entrypoint": ["/pause"], "User": "65535:65535"}), vec![&pause]),
                Recipe::DevicePlugin => {
                    let plugin = plugin.as_ref().context("the list names the plugin")?;
                    (json!({"Entrypoint": ["/sampledeviceplugin"]}), vec![&shell, plugin])
                }
                Recipe::Kitten => (json!({}), vec![&kitten]),
            };
            let mut config = json!({"Env": [PATH]});
            if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
                config.extend(more);
            }
            let layers: Vec<Blob> = layers.into_iter().cloned().collect();
            self.blobs.image(name, tag, &config, &layers)?;
            made += 1;
        }
        Ok(made)
    }

    /// The layer of the device plugin, which is built only for a list that has its image.
    fn device_plugin(&self, list: &str) -> Result<Option<Blob>> {
        if !parse(list).iter().any(|(name, _)| recipe(name) == Some(Recipe::DevicePlugin)) {
            return Ok(None);
        }
        let program = programs::device_plugin(self.run)?;
        self.layer(|tree| copy(&program, &tree.join("sampledeviceplugin"), 0o755)).map(Some)
    }

    /// A layer of the files that `fill` puts into an empty tree.
    fn layer(&self, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Blob> {
        let tree = self.dir.join("tree");
        fs::create_dir_all(&tree)?;
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o755))?;
        fill(&tree)?;
        let layer = self.blobs.layer(self.run, &tree)?;
        fs::remove_dir_all(&tree)?;
        Ok(layer)
    }

    fn program(&self, target: Target, to: &Path, mode: u32) -> Result<()> {
        copy(&self.suite.images.join(target.program()), to, mode)
    }

    /// The directory that agnhost's registry serves: an image's manifest and blobs by digest, its tag.
    fn inner_registry(&self, dir: &Path, manifest: &Blob) -> Result<()> {
        let image = dir.join(INNER.0);
        let text = fs::read(self.blobs.path(&manifest.hex))?;
        let parsed: Value = serde_json::from_slice(&text).context("read the manifest made above")?;
        let copy = |kind: &str, hex: &str| -> Result<()> {
            let to = image.join(kind).join("sha256").join(&hex[..2]).join(hex);
            fs::create_dir_all(&to)?;
            fs::copy(self.blobs.path(hex), to.join("data")).context("copy a blob")?;
            Ok(())
        };
        copy("manifests", &manifest.hex)?;
        let layers = parsed["layers"].as_array().into_iter().flatten();
        for blob in layers.chain([&parsed["config"]]) {
            copy("blobs", blob["digest"].as_str().unwrap_or_default().trim_start_matches("sha256:"))?;
        }
        fs::write(image.join("manifests").join(INNER.1), format!("sha256:{}", manifest.hex))
            .context("write a tag")
    }
}

/// The shell's wrapper. busybox's own shell drops variables whose names it considers invalid, and the suite looks for
/// `data-1` in the output of `env`; the suite also expects busybox's error messages.
const BASH: &str = "/bin/bash-static";
const SH: &str = "#!/bin/bash\n[ \"$*\" = \"-c env\" ] && exec env\nexec -a \"$0\" /bin/busybox \"$@\"\n";

/// Replacement for busybox's `nmeter`, which Debian's busybox lacks: the node suite asks for the time in milliseconds.
const NMETER: &str =
    "#!/bin/bash\nt=$EPOCHREALTIME\nf=${t#*.}\nprintf '%(%H:%M:%S)T.%s\\n' \"${t%.*}\" \"${f:0:3}\"\n";

/// Directories, accounts, the whole busybox and a shell.
fn shell(tree: &Path) -> Result<()> {
    for dir in ["etc", "home", "root", "sbin", "tmp", "usr/bin", "usr/sbin", "var"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    host::install_busybox(&tree.join("bin"))?;
    fs::remove_file(tree.join("bin/sh"))?;
    fs::copy(BASH, tree.join("bin/bash")).with_context(|| format!("copy {BASH}"))?;
    fs::set_permissions(tree.join("bin/bash"), fs::Permissions::from_mode(0o755))?;
    script(&tree.join("bin/sh"), SH)?;
    if !tree.join("bin/nmeter").is_symlink() {
        script(&tree.join("bin/nmeter"), NMETER)?;
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
    fs::write(tree.join("etc/passwd"), users)?;
    fs::write(tree.join("etc/group"), "root:x:0:\nnobody:x:65534:\n")?;
    Ok(())
}

/// Files of agnhost's image in addition to its programs.
fn agnhost(tree: &Path) -> Result<()> {
    symlink("agnhost", tree.join("agnhost-2"))?;
    fs::create_dir_all(tree.join("uploads"))?;
    let key =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).context("make a certificate")?;
    fs::write(tree.join("localhost.crt"), key.cert.pem())?;
    fs::write(tree.join("localhost.key"), key.signing_key.serialize_pem())?;
    fs::create_dir_all(tree.join("etc"))?;
    // The suite checks the groups that an image gives its users.
    let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n\
                 user-defined-in-image:x:1000:1000::/:/bin/sh\n";
    fs::write(tree.join("etc/passwd"), users)?;
    let groups = "root:x:0:\nnobody:x:65534:\nuser-defined-in-image:x:1000:\n\
                  group-defined-in-image:x:50000:user-defined-in-image\n";
    fs::write(tree.join("etc/group"), groups).context("write groups")
}

/// Files that the suite expects in the volume: words of its picture's description, and of the image's base system.
fn kitten(tree: &Path) -> Result<()> {
    let etc = tree.join("etc");
    fs::create_dir_all(&etc).with_context(|| format!("make {}", etc.display()))?;
    fs::write(tree.join("data.json"), "{\"image\": \"kitten.jpg\"}\n").context("write data.json")?;
    fs::write(etc.join("os-release"), "NAME=\"stands for Alpine Linux\"\n").context("write os-release")
}

/// A program with nginx's name that listens on nginx's port.
fn nginx(tree: &Path) -> Result<()> {
    fs::create_dir_all(tree.join("usr/sbin"))?;
    fs::create_dir_all(tree.join("usr/share/nginx/html"))?;
    fs::write(tree.join("usr/share/nginx/html/index.html"), "Welcome to nginx!\n")?;
    script(&tree.join("usr/sbin/nginx"), "#!/bin/sh\nexec httpd -f -p 80 -h /usr/share/nginx/html\n")
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).context("set a mode")
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).context("set a mode")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suites_names_are_kept() {
        let list = "registry.k8s.io/e2e-test-images/agnhost:2.63.0\n\
                    gcr.io/k8s-authenticated-test/agnhost:2.6\n\
                    invalid.registry.k8s.io/invalid/alpine:3.1\n\
                    registry.k8s.io/pause:3.10.2\n";
        let parsed = parse(list);
        assert_eq!(parsed, [("e2e-test-images/agnhost", "2.63.0"), ("pause", "3.10.2")]);
        assert_eq!(recipe(parsed[0].0), Some(Recipe::Agnhost));
        assert_eq!(recipe("e2e-test-images/nautilus"), None);
        let [(name, tag)] = parse(OF_MANIFESTS)[..] else { panic!("one image") };
        assert_eq!((recipe(name), tag), (Some(Recipe::DevicePlugin), "1.7"));
    }

    #[test]
    fn an_image_goes_into_agnhosts_registry() {
        let dir = std::env::temp_dir().join(format!("orlop-suite-{}", std::process::id()));
        let run = Run::start().unwrap();
        let suite = Suite { e2e: dir.join("x"), ginkgo: dir.join("x"), images: dir.join("programs") };
        fs::create_dir_all(&suite.images).unwrap();
        fs::create_dir_all(dir.join("registry")).unwrap();
        for target in [Target::Agnhost, Target::Curl, Target::NoNewPrivs, Target::Pause, Target::Sshd] {
            fs::write(suite.images.join(target.program()), "a program").unwrap();
        }
        let (at, tree) = (dir.join("registry"), dir.join("inner"));
        let trees = Trees { run: &run, suite: &suite, blobs: Blobs::at(&at).unwrap(), dir: &at };
        let layer = trees.layer(|t| trees.program(Target::Pause, &t.join("pause"), 0o755)).unwrap();
        let manifest =
            trees.blobs.image("pause", "testing", &json!({}), std::slice::from_ref(&layer)).unwrap();
        trees.inner_registry(&tree, &manifest).unwrap();
        let (a, b) = (&manifest.hex[..2], &layer.hex[..2]);
        assert_eq!(
            fs::read_to_string(tree.join("pause/manifests/testing")).unwrap(),
            format!("sha256:{}", manifest.hex)
        );
        assert!(tree.join(format!("pause/manifests/sha256/{a}/{}/data", manifest.hex)).is_file());
        assert!(tree.join(format!("pause/blobs/sha256/{b}/{}/data", layer.hex)).is_file());
        run.close();
        fs::remove_dir_all(dir).unwrap();
    }
}
