//! Drivers that are scripts: asked once for their capabilities, asked again after a replacement, and not asked for
//! unsupported commands.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Call, Driver, Drivers, Path, PathBuf, Record, Refusal, Tasks, on_disk};
use crate::testing::VirtualClock;

/// A directory of drivers; `vendor/driver` logs its calls.
pub(crate) struct Scripts {
    /// Directory of the drivers.
    pub(crate) directory: PathBuf,
}

impl Scripts {
    pub(crate) fn new(below: &Path) -> Scripts {
        let directory = below.join("drivers");
        fs::create_dir_all(directory.join("vendor~driver")).unwrap();
        Scripts { directory }
    }

    /// The driver does this; `$1` is the command.
    pub(crate) fn put(&self, body: &str) {
        let script = format!(
            "#!/bin/sh\nD={0}\necho \"$@\" >> $D/log\nok() {{ echo '{{\"status\": \"Success\"'\"$1\"'}}'; exit 0; }}\n\
             no() {{ echo '{{\"status\": \"Not supported\"}}'; exit 1; }}\ncase \"$1\" in\n{body}\n*) no;;\nesac\n",
            self.directory.display()
        );
        let (text, new) = (self.directory.join("text"), self.directory.join("vendor~driver/.new"));
        fs::write(&text, script).unwrap();
        // Another process copies the file: a child of this process could hold the file open, and then nothing could
        // execute it.
        assert!(Command::new("cp").args([&text, &new]).status().unwrap().success());
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, self.directory.join("vendor~driver/driver")).unwrap();
    }

    /// The commands that the driver received, with their arguments, without options.
    pub(crate) fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let _ = fs::remove_file(self.directory.join("log"));
        text.lines().map(|line| line.split(" {").next().unwrap_or_default().to_owned()).collect()
    }
}

fn tasks() -> Tasks {
    Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new())
}

fn driver() -> Driver {
    Driver::new("vendor/driver").unwrap()
}

#[tokio::test]
async fn a_program_is_asked_once_for_the_file_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, tasks) = (Scripts::new(dir.path()), tasks());
    let drivers = Drivers::new(&scripts.directory);
    assert_eq!(drivers.find(&driver(), &tasks).await, Err("no volume plugin matched".to_owned()));

    scripts.put("init) ok ', \"capabilities\": {\"attach\": false}';;");
    for _ in 0..2 {
        let found = drivers.find(&driver(), &tasks).await.unwrap();
        assert!(!found.attach && found.fs_group && !found.metrics);
    }
    assert_eq!(scripts.log(), ["init"]);
    for _ in 0..2 {
        let refused = drivers.call(&driver(), &Call::unmount("/t")).await;
        assert_eq!(refused, Err(Refusal::NotSupported));
    }
    assert_eq!(scripts.log(), ["unmount /t"], "it is asked again for what it does not know");

    // A new driver may support more.
    scripts.put("init) ok;;\nunmount) ok;;");
    assert!(drivers.find(&driver(), &tasks).await.unwrap().attach);
    drivers.call(&driver(), &Call::unmount("/t")).await.unwrap();
    assert_eq!(scripts.log(), ["init", "unmount /t"]);

    scripts.put("init) echo '{\"status\": \"Failure\", \"message\": \"no kernel module\"}'; exit 1;;");
    let told = drivers.find(&driver(), &tasks).await.unwrap_err();
    let words = "no volume plugin matched (error creating Flexvolume plugin from directory vendor~driver, skipping. Error: \
                 init command failed, status: Failure, reason: no kernel module)";
    assert_eq!(told, words);
    fs::remove_file(scripts.directory.join("vendor~driver/driver")).unwrap();
    assert_eq!(drivers.find(&driver(), &tasks).await, Err("no volume plugin matched".to_owned()));
}

#[tokio::test]
async fn what_is_here_is_given_back_and_then_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, tasks, root) = (Scripts::new(dir.path()), tasks(), dir.path().join("kubelet"));
    let drivers = Drivers::new(&scripts.directory);
    let global = root.join("plugins/kubernetes.io/flexvolume/vendor/driver/mounts/v");
    fs::create_dir_all(&global).unwrap();
    let record = Record {
        driver: driver(),
        volume: "v".to_owned(),
        global: global.display().to_string(),
        attached_by: Some("n".to_owned()),
        device: None,
    };
    on_disk::write(&root, &record).unwrap();
    // Without the driver the volume cannot be detached.
    let told = drivers.give_back(&record, &root, &tasks).await.unwrap_err();
    assert!(told.contains("no volume plugin matched"), "{told}");
    scripts.put("init) ok;;\ndetach) echo '{\"status\": \"Failure\", \"message\": \"busy\"}'; exit 1;;");
    let told = drivers.give_back(&record, &root, &tasks).await.unwrap_err();
    assert_eq!(told, "DetachVolume.Detach failed: detach command failed, status: Failure, reason: busy");
    assert_eq!(on_disk::records(&root).unwrap(), std::slice::from_ref(&record));
    scripts.put("init) ok;;\ndetach) ok;;");
    scripts.log();
    drivers.give_back(&record, &root, &tasks).await.unwrap();
    // The volume was not mounted: the driver gets no unmount.
    assert_eq!(scripts.log(), ["init", "detach v n"]);
    assert!(on_disk::records(&root).unwrap().is_empty() && !global.exists());

    // A volume that the cluster detaches and that is not mounted needs no driver.
    fs::remove_file(scripts.directory.join("vendor~driver/driver")).unwrap();
    let record = Record { attached_by: None, ..record };
    on_disk::write(&root, &record).unwrap();
    drivers.give_back(&record, &root, &tasks).await.unwrap();
    assert!(on_disk::records(&root).unwrap().is_empty());
}
