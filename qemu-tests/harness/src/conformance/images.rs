//! The suite's images, made here and served by a registry under the suite's names.
//!
//! In: the list of images that the suite prints, the programs of the suite's images (compiled from upstream's sources),
//! programs of packages (`tools.rs`) and files (`contents.rs`). Out: images in a registry's directory; for a native
//! node a containerd that finds `registry.k8s.io` only there. Images without a recipe are missing, and their tests fail
//! with this reason. Invariant: names and tags are the suite's own.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::contents::{self, copy};
use super::tools;
use crate::cluster::build::Target;
use crate::cluster::programs::{self, Suite};
use crate::native::blobs::{Blob, Blobs};
use crate::native::images as host;
use crate::native::node::NativeNode;
use crate::native::registry::HOST;
use crate::process::must;
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
/// The sample's program among those of the suite's images, and in its own.
const SAMPLE_API_SERVER: &str = "sample-apiserver";
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
    /// A server of files.
    Nautilus,
    /// glibc's resolver, and `dig`.
    Names,
    /// `ipcs`.
    Ipc,
    Perl,
    Etcd,
    /// An API server behind the aggregation layer.
    SampleApiServer,
}

/// The recipe for an image by the last part of its name.
fn recipe(name: &str) -> Option<Recipe> {
    Some(match name.rsplit('/').next()? {
        "busybox" => Recipe::Busybox,
        "glibc-dns-testing" => Recipe::Names,
        "agnhost" => Recipe::Agnhost,
        "nonewprivs" => Recipe::NoNewPrivs,
        "nonroot" => Recipe::NonRoot,
        "nginx" => Recipe::Nginx,
        "pause" => Recipe::Pause,
        "sample-device-plugin" => Recipe::DevicePlugin,
        "kitten" => Recipe::Kitten,
        "nautilus" => Recipe::Nautilus,
        "ipc-utils" => Recipe::Ipc,
        "perl" => Recipe::Perl,
        "etcd" => Recipe::Etcd,
        "sample-apiserver" => Recipe::SampleApiServer,
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

/// The caller's variables by which the suite would take its images from elsewhere.
const OF_THE_CALLER: [&str; 2] = ["KUBE_TEST_REPO", "KUBE_TEST_REPO_LIST"];

/// Lets a command of the suite use the suite's own names of images under any environment of the caller. Every command needs it: the
/// list, the selection and the tests must agree.
pub(super) fn keep_names(command: &mut Command) -> &mut Command {
    for variable in OF_THE_CALLER {
        command.env_remove(variable);
    }
    command
}

/// The images that the suite says it needs.
pub(super) fn list(run: &Arc<Run>, suite: &Suite) -> Result<String> {
    must(run, keep_names(Command::new(&suite.e2e).arg("--list-images"))).context("ask for the images")
}

/// Makes the images of `list` that have a recipe, in a registry's directory.
///
/// # Errors
/// If a program is missing, the directory cannot be written, or no image has a recipe.
pub fn make(run: &Arc<Run>, dir: &Path, suite: &Suite, list: &str) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    let made = Trees { run, suite, blobs }.make(list)?;
    anyhow::ensure!(made > 0, "the suite's list of images has none of {REGISTRY}:\n{list}");
    Ok(())
}

/// Makes the images in the node's own registry, and configures its containerd for them.
///
/// # Errors
/// As [`make`], or the node's directory cannot be written.
pub fn serve(run: &Arc<Run>, node: &NativeNode, suite: &Suite, list: &str) -> Result<()> {
    make(run, &node.inside(host::REGISTRY), suite, list)?;
    host::lead_to_registry(node, REGISTRY, HOST)
}

/// Layers of the images. Those of programs that are not there are missing.
struct Layers {
    shell: Blob,
    pause: Blob,
    names: Blob,
    agnhost: Blob,
    nnp: Blob,
    nginx: Blob,
    kitten: Blob,
    nautilus: Blob,
    ipc: Blob,
    perl: Blob,
    etcd: Option<Blob>,
    sample: Blob,
    plugin: Option<Blob>,
}

impl Layers {
    /// Configuration and layers of an image.
    fn image(&self, recipe: Recipe) -> Option<(Value, Vec<&Blob>)> {
        let shell = &self.shell;
        Some(match recipe {
            Recipe::Busybox => (json!({"Cmd": ["sh"]}), vec![shell]),
            Recipe::Agnhost => (
                json!({"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}),
                vec![shell, &self.names, &self.agnhost],
            ),
            Recipe::NoNewPrivs => (json!({"Cmd": ["nnp"]}), vec![shell, &self.nnp]),
            Recipe::NonRoot => (json!({"Cmd": ["sh"], "User": "1234"}), vec![shell]),
            Recipe::Nginx => (json!({"Cmd": ["nginx"]}), vec![shell, &self.nginx]),
            Recipe::Pause => (json!({"Entrypoint": ["/pause"], "User": "65535:65535"}), vec![&self.pause]),
            Recipe::DevicePlugin => {
                (json!({"Entrypoint": ["/sampledeviceplugin"]}), vec![shell, self.plugin.as_ref()?])
            }
            Recipe::Kitten => (json!({}), vec![&self.kitten]),
            Recipe::Nautilus => (
                json!({"Entrypoint": ["/agnhost"], "Cmd": ["test-webserver"]}),
                vec![shell, &self.names, &self.agnhost, &self.nautilus],
            ),
            Recipe::Names => (json!({"Cmd": ["sh"]}), vec![shell, &self.names]),
            Recipe::Ipc => (json!({"Cmd": ["sh"]}), vec![shell, &self.ipc]),
            Recipe::Perl => (json!({"Cmd": ["perl"]}), vec![shell, &self.perl]),
            Recipe::Etcd => (json!({"Cmd": ["etcd"]}), vec![self.etcd.as_ref()?]),
            Recipe::SampleApiServer => {
                (json!({"Entrypoint": [format!("/{SAMPLE_API_SERVER}")]}), vec![&self.sample])
            }
        })
    }
}

/// An image's configuration. The tag is a part of it: two releases are two images even if their files are equal here, or
/// the runtime would have one image with two names, and the status of a container the wrong one of them. Pure.
fn configuration(tag: &str, more: Value) -> Value {
    let mut config = json!({"Env": [PATH], "Labels": {"org.opencontainers.image.version": tag}});
    if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
        config.extend(more);
    }
    config
}

struct Trees<'a> {
    run: &'a Arc<Run>,
    suite: &'a Suite,
    blobs: Blobs<'a>,
}

impl Trees<'_> {
    fn make(&self, list: &str) -> Result<usize> {
        let layers = self.layers(list)?;
        let mut made = 0;
        for (name, tag) in parse(list) {
            let Some(recipe) = recipe(name) else { continue };
            let Some((more, of)) = layers.image(recipe) else { continue };
            let of: Vec<Blob> = of.into_iter().cloned().collect();
            self.blobs.image(name, tag, &configuration(tag, more), &of)?;
            made += 1;
        }
        Ok(made)
    }

    /// All layers; also makes the images that are not in the list.
    fn layers(&self, list: &str) -> Result<Layers> {
        let pause = self.layer(|tree| self.program(Target::Pause, &tree.join("pause"), 0o755))?;
        let config = json!({"Env": [PATH], "Entrypoint": ["/pause"], "User": "65535:65535"});
        let inner = self.blobs.image(INNER.0, INNER.1, &config, std::slice::from_ref(&pause))?;
        let login = self.layer(|tree| self.program(Target::Sshd, &tree.join("sshd"), 0o755))?;
        self.blobs.image(
            LOGIN.0,
            LOGIN.1,
            &json!({"Entrypoint": ["/sshd"]}),
            std::slice::from_ref(&login),
        )?;
        let names = self.layer(|tree| {
            tools::resolver(self.run, tree)?;
            contents::name_services(tree)
        })?;
        let agnhost = self.layer(|tree| {
            self.program(Target::Agnhost, &tree.join("agnhost"), 0o755)?;
            self.inner_registry(&tree.join("var/registry"), &inner)?;
            self.program(Target::Curl, &tree.join("usr/bin/curl"), 0o755)?;
            tools::netcat(self.run, tree)?;
            contents::netcat(tree)?;
            contents::agnhost(tree)
        })?;
        let of = |recipe: Recipe| parse(list).iter().any(|(name, _)| self::recipe(name) == Some(recipe));
        let etcd = of(Recipe::Etcd).then(|| self.layer(|tree| self.etcd(tree))).transpose()?;
        Ok(Layers {
            shell: self.layer(contents::shell)?,
            pause,
            names,
            agnhost,
            nnp: self
                .layer(|tree| self.program(Target::NoNewPrivs, &tree.join("usr/local/bin/nnp"), 0o4755))?,
            nginx: self.layer(contents::nginx)?,
            kitten: self.layer(contents::kitten)?,
            nautilus: self.layer(contents::nautilus)?,
            ipc: self.layer(|tree| tools::ipc(self.run, tree))?,
            perl: self.layer(|tree| tools::perl(self.run, tree))?,
            etcd,
            sample: self
                .layer(|tree| self.program(Target::SampleApiServer, &tree.join(SAMPLE_API_SERVER), 0o755))?,
            plugin: self.device_plugin(list)?,
        })
    }

    fn etcd(&self, tree: &Path) -> Result<()> {
        let etcd = programs::find(self.run)?.etcd().to_owned();
        tools::install(self.run, Path::new("/"), &etcd, tree, "usr/local/bin/etcd")
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
        self.blobs.layer_of(self.run, fill)
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

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
        assert_eq!(recipe("e2e-test-images/volume/nfs"), None);
        for name in ["nautilus", "ipc-utils", "glibc-dns-testing", "perl", "sample-apiserver"] {
            assert!(recipe(&format!("e2e-test-images/{name}")).is_some(), "{name}");
        }
        let [(name, tag)] = parse(OF_MANIFESTS)[..] else { panic!("one image") };
        assert_eq!((recipe(name), tag), (Some(Recipe::DevicePlugin), "1.7"));
    }

    #[test]
    fn releases_of_an_image_differ() {
        let of = |tag: &str| configuration(tag, json!({"Cmd": ["sh"], "User": "1234"}));
        assert_ne!(of("2.55"), of("2.63.0"));
        let config = of("2.55");
        assert_eq!((config["Cmd"][0].as_str(), config["User"].as_str()), (Some("sh"), Some("1234")));
        assert_eq!(config["Env"][0], PATH);
    }

    #[test]
    fn a_command_of_the_suite_does_not_see_the_callers_registry() {
        let mut command = Command::new("e2e.test");
        command.env("KUBE_TEST_REPO", "elsewhere");
        let removed: Vec<_> = keep_names(&mut command).get_envs().collect();
        let expected = ["KUBE_TEST_REPO", "KUBE_TEST_REPO_LIST"].map(OsStr::new);
        assert_eq!(removed, expected.map(|name| (name, None::<&OsStr>)));
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
        let trees = Trees { run: &run, suite: &suite, blobs: Blobs::at(&at).unwrap() };
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
