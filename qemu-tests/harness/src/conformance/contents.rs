//! Files of the suite's images, in addition to compiled programs: a shell and its tools, users, pictures, scripts.
//!
//! In: the host's static busybox and bash, an image's empty tree. Out: files in the tree.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};

use crate::native::images as host;

/// The shell's wrapper. busybox's own shell drops variables whose names it considers invalid, and the suite looks for
/// `data-1` in the output of `env`; the suite also expects busybox's error messages.
const BASH: &str = "/bin/bash-static";
const SH: &str = "#!/bin/bash\n[ \"$*\" = \"-c env\" ] && exec env\nexec -a \"$0\" /bin/busybox \"$@\"\n";

/// Replacement for busybox's `nmeter`, which Debian's busybox lacks: the node suite asks for the time in milliseconds.
const NMETER: &str =
    "#!/bin/bash\nt=$EPOCHREALTIME\nf=${t#*.}\nprintf '%(%H:%M:%S)T.%s\\n' \"${t%.*}\" \"${f:0:3}\"\n";

/// Directories, accounts, the whole busybox and a shell.
pub(super) fn shell(tree: &Path) -> Result<()> {
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
pub(super) fn agnhost(tree: &Path) -> Result<()> {
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
pub(super) fn kitten(tree: &Path) -> Result<()> {
    let etc = tree.join("etc");
    fs::create_dir_all(&etc).with_context(|| format!("make {}", etc.display()))?;
    fs::write(tree.join("data.json"), "{\"image\": \"kitten.jpg\"}\n").context("write data.json")?;
    fs::write(etc.join("os-release"), "NAME=\"stands for Alpine Linux\"\n").context("write os-release")
}

/// Replacement for nginx.
const NGINX: &str = include_str!("../../../conformance/images/nginx");

/// A program with nginx's name and process file that listens on nginx's port.
pub(super) fn nginx(tree: &Path) -> Result<()> {
    for dir in ["usr/sbin", "usr/share/nginx/html", "var/run"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    fs::write(tree.join("usr/share/nginx/html/index.html"), "Welcome to nginx!\n")?;
    script(&tree.join("usr/sbin/nginx"), NGINX)
}

/// What the suite reads from the picture's server.
pub(super) fn nautilus(tree: &Path) -> Result<()> {
    fs::write(tree.join("data.json"), "{\"image\": \"nautilus.jpg\"}\n").context("write data.json")
}

/// Where names are looked up: in the file of hosts, then at the pod's name servers.
const NAME_SERVICES: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// Configuration of glibc's programs.
pub(super) fn name_services(tree: &Path) -> Result<()> {
    fs::create_dir_all(tree.join("etc"))?;
    fs::write(tree.join("etc/nsswitch.conf"), NAME_SERVICES).context("write nsswitch.conf")
}

/// The shell's wrapper for images with another netcat than busybox's.
const SH_NETCAT: &str = include_str!("../../../conformance/images/sh-netcat");

/// Lets the shell find the netcat in /usr/bin.
pub(super) fn netcat(tree: &Path) -> Result<()> {
    fs::create_dir_all(tree.join("bin"))?;
    script(&tree.join("bin/sh"), SH_NETCAT)
}

pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
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
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::*;

    fn place(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("orlop-contents-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Writes a script that this machine can run: with its own busybox, and with paths below `dir`.
    fn run_here(dir: &Path, name: &str, text: &str) -> PathBuf {
        let busybox = host::host_busybox().unwrap();
        let text = text
            .replace("/bin/busybox", &busybox.display().to_string())
            .replace("/usr/bin/nc", &dir.join("nc").display().to_string())
            .replace("/var/run/", &format!("{}/", dir.display()))
            .replace("httpd -f -p 80 -h /usr/share/nginx/html", "sleep 1000");
        let (draft, file) = (dir.join("draft"), dir.join(name));
        fs::write(&draft, text).unwrap();
        // A file that this process has written is busy for a moment when another thread starts a program.
        let installed = Command::new("install").args(["-m", "755"]).args([&draft, &file]).status().unwrap();
        assert!(installed.success());
        file
    }

    #[test]
    fn the_shell_finds_the_other_netcat() {
        let dir = place("netcat");
        run_here(&dir, "nc", "#!/bin/sh\necho \"nc $*\"\n");
        let shell = run_here(&dir, "sh", SH_NETCAT);
        let said = |args: &[&str]| {
            let output = Command::new(&shell).args(args).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(said(&["-c", "echo x | nc -u -w 2 \"a  b\""]), "nc -u -w 2 a  b\n");
        // As the suite asks whether a Service answers.
        assert_eq!(said(&["-x", "-c", "echo x | nc -v -t -w 2 name 80"]), "nc -v -t -w 2 name 80\n");
        assert_eq!(said(&["-ec", "nc one; false; echo two"]), "nc one\n");
        assert_eq!(said(&["-c", "echo \"$0 $1\"", "zero", "one"]), "zero one\n");
        assert!(said(&["-c", "env"]).contains("PATH="));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_stands_for_nginx_has_its_number_in_nginxs_file() {
        let dir = place("nginx");
        let nginx = run_here(&dir, "nginx", NGINX);
        let mut child = Command::new(&nginx).stdin(Stdio::null()).spawn().unwrap();
        let number = child.id().to_string();
        let file = dir.join("nginx.pid");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !fs::read_to_string(&file).is_ok_and(|text| text.trim() == number) {
            assert!(std::time::Instant::now() < deadline, "no number in the file");
        }
        let comm = fs::read_to_string(format!("/proc/{number}/comm")).unwrap();
        assert_eq!(comm, "nginx\n");
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success());
        fs::remove_dir_all(dir).unwrap();
    }
}
