//! Pods' volumes with drivers that are scripts, over restarts of the agent.

use std::sync::Arc;

use agent_core::pod_worker::effect::Effect;
use agent_linux::volumes::ownership::{self, Progress};
use agent_types::failure::Class;
use agent_volumes::Work;
use agent_volumes::flex::source::Source;
use agent_volumes::plugin::Plugin;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::pods::execute::tests::{Rig, rig_in};
use crate::volumes::flex::tests::Scripts;
use crate::volumes::ownership::Ownership;

/// A driver that attaches nothing and mounts a tmpfs.
const PLAIN: &str = "init) ok ', \"capabilities\": {\"attach\": false, \"supportsMetrics\": true}';;\n\
                     mount) mount -t tmpfs tmpfs $2 && ok;;\nunmount) umount $2 && ok;;";

fn key(uid: &str) -> PodKey {
    PodKey { namespace: "ns".into(), name: "web".into(), uid: uid.into() }
}

/// The set-up of a pod's volume with this source.
fn volume(rig: &Rig, uid: &str, source: Value) -> SetUp {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns", "uid": uid},
        "spec": {"containers": []}}))
    .unwrap();
    let source = Source::of_volume(serde_json::from_value(source).unwrap());
    let root = rig.dir.path();
    let flex = Flex::of_pod(&pod, "v", &source, (&root.to_string_lossy(), "n")).unwrap();
    SetUp {
        name: "v".to_owned(),
        plugin: Plugin::Flex,
        path: root.join("pods").join(uid).join(flex.driver.below("v")).display().to_string(),
        work: Work::Flex(Box::new(flex)),
        nested: Vec::new(),
        fs_group: Some(4242),
    }
}

fn plain(rig: &Rig, uid: &str) -> SetUp {
    volume(rig, uid, json!({"driver": "vendor/driver"}))
}

impl Rig {
    async fn is_set_up(&mut self, uid: &str, volume: &SetUp) -> EffectResult {
        let effect = Effect::SetUpVolume { volume: Box::new(volume.clone()) };
        self.start_of(&key(uid), 1, effect, Some(120));
        self.answer().await.1
    }

    async fn is_torn_down(&mut self, uid: &str) -> EffectResult {
        self.start_of(&key(uid), 2, Effect::TearDownVolumes, Some(120));
        self.answer().await.1
    }

    /// Kills the agent and starts another one.
    fn again(self) -> Rig {
        rig_in(self.dir, 1)
    }
}

fn is_root() -> bool {
    agent_linux::process::is_root()
}

fn is_mounted(volume: &SetUp) -> bool {
    on_disk::is_mounted(&volume.path).unwrap()
}

#[tokio::test]
async fn a_driver_mounts_and_unmounts_once_whoever_the_agent_is() {
    if !is_root() {
        return;
    }
    let mut rig = rig_in(tempfile::tempdir().unwrap(), 1);
    let scripts = Scripts::new(rig.dir.path());
    scripts.put(PLAIN);
    let set_up = plain(&rig, "u");
    assert_eq!(rig.is_set_up("u", &set_up).await, Ok(done(Capabilities::default(), None, None)));
    assert!(is_mounted(&set_up));
    let gid = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(&set_up.path).unwrap());
    assert_eq!(gid, 4242);
    assert_eq!(scripts.log(), ["init".to_owned(), format!("mount {}", set_up.path)]);
    assert_eq!(rig.is_set_up("u", &set_up).await, Ok(done(Capabilities::default(), None, None)));
    assert!(scripts.log().is_empty(), "what is there is looked at only");

    let mut rig = rig.again();
    assert_eq!(rig.is_set_up("u", &set_up).await, Ok(done(Capabilities::default(), None, None)));
    assert_eq!(scripts.log(), ["init"]);
    let measured = rig.executor.local_volumes().all();
    assert_eq!(measured.len(), 1, "{measured:?}");

    // The driver's program is gone: its own mount cannot be unmounted.
    let program = scripts.directory.join("vendor~driver/driver");
    std::fs::rename(&program, scripts.directory.join("away")).unwrap();
    let mut rig = rig.again();
    let told = rig.is_torn_down("u").await.unwrap_err();
    assert_eq!(told.message, "UnmountVolume.TearDown failed for volume \"v\" : no volume plugin matched");
    assert!(matches!(told.class, Class::Retryable { .. }) && is_mounted(&set_up));
    std::fs::rename(scripts.directory.join("away"), &program).unwrap();
    assert_eq!(rig.is_torn_down("u").await, Ok(EffectOk::Done));
    assert_eq!(scripts.log(), ["init".to_owned(), format!("unmount {}", set_up.path)]);
    assert!(!is_mounted(&set_up) && !rig.dir.path().join("pods/u/volumes").exists());
    assert_eq!(rig.is_torn_down("u").await, Ok(EffectOk::Done));
    assert!(scripts.log().is_empty());
}

/// The reason why no driver supports the volume.
fn unprocessed(told: EffectResult) -> String {
    match told {
        Ok(EffectOk::Unprocessed { why }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_fails_is_told_in_upstreams_words_and_leaves_nothing() {
    let mut rig = rig_in(tempfile::tempdir().unwrap(), 1);
    let scripts = Scripts::new(rig.dir.path());
    let set_up = plain(&rig, "u");
    let told = unprocessed(rig.is_set_up("u", &set_up).await);
    assert_eq!(told, "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched");
    scripts.put(
        "init) ok ', \"capabilities\": {\"attach\": false}';;\n\
                 mount) echo '{\"status\": \"Failure\", \"message\": \"no such share\"}'; exit 1;;",
    );
    let told = rig.is_set_up("u", &set_up).await.unwrap_err().message;
    let words = "MountVolume.SetUp failed for volume \"v\" : mount command failed, status: Failure, reason: no such share";
    assert_eq!(told, words);
    assert!(!Path::new(&set_up.path).exists());
    let secret = volume(&rig, "u", json!({"driver": "vendor/driver", "secretRef": {"name": "s"}}));
    let told = rig.is_set_up("u", &secret).await.unwrap_err().message;
    assert_eq!(told, "couldn't get secret ns/s err: the node belongs to no cluster");
    assert_eq!(rig.is_torn_down("u").await, Ok(EffectOk::Done));
}

#[tokio::test]
async fn what_the_machine_has_forgotten_is_not_insisted_on() {
    let mut rig = rig_in(tempfile::tempdir().unwrap(), 1);
    let scripts = Scripts::new(rig.dir.path());
    scripts.put(
        "init) ok ', \"capabilities\": {\"attach\": false}';;\nmount) ok;;\n\
         unmount) echo '{\"status\": \"Failure\", \"message\": \"not mounted\"}'; exit 1;;",
    );
    let set_up = plain(&rig, "u");
    assert_eq!(rig.is_set_up("u", &set_up).await, Ok(done(Capabilities::default(), None, None)));
    let told = rig.is_torn_down("u").await.unwrap_err().message;
    let words = "UnmountVolume.TearDown failed for volume \"v\" : unmount command failed, status: Failure, reason: not mounted";
    assert_eq!(told, words);
    let Work::Flex(flex) = &set_up.work else { panic!("{set_up:?}") };
    std::fs::write(Path::new(&flex.mark).join("boot"), "another").unwrap();
    assert_eq!(rig.is_torn_down("u").await, Ok(EffectOk::Done));
    assert!(!Path::new(&set_up.path).exists());
}

#[tokio::test]
async fn a_volume_may_be_no_mount_at_all() {
    let mut rig = rig_in(tempfile::tempdir().unwrap(), 1);
    let scripts = Scripts::new(rig.dir.path());
    scripts.put(
        "init) ok ', \"capabilities\": {\"attach\": false, \"fsGroup\": false}';;\n\
                 mount) echo x > $2/f; ok;;\nunmount) rm $2/f && ok;;",
    );
    let set_up = plain(&rig, "u");
    for _ in 0..2 {
        assert_eq!(rig.is_set_up("u", &set_up).await, Ok(done(Capabilities::default(), None, None)));
    }
    assert_eq!(scripts.log().len(), 2, "it is asked once by each agent");
    let mut rig = rig.again();
    assert_eq!(rig.is_set_up("u", &set_up).await, Ok(done(Capabilities::default(), None, None)));
    assert_eq!(scripts.log().len(), 2);
    assert_eq!(rig.is_torn_down("u").await, Ok(EffectOk::Done));
    assert!(!Path::new(&set_up.path).exists());
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_is_killed() {
    let mut rig = rig_in(tempfile::tempdir().unwrap(), 1);
    let scripts = Scripts::new(rig.dir.path());
    scripts.put("init) sleep 600;;");
    let set_up = plain(&rig, "u");
    let effect = Effect::SetUpVolume { volume: Box::new(set_up) };
    rig.start_of(&key("u"), 1, effect, Some(1000));
    let told = unprocessed(rig.answer().await.1);
    assert!(told.ends_with("Error: init command failed, killed after 120 s)"), "{told}");
}

#[tokio::test]
async fn the_node_attaches_a_volume_once_for_its_pods() {
    if !is_root() {
        return;
    }
    let mut rig = rig_in(tempfile::tempdir().unwrap(), 1);
    let (scripts, root) = (Scripts::new(rig.dir.path()), rig.dir.path().to_owned());
    scripts.put("init) ok;;\nattach) ok ', \"device\": \"/dev/e2e\"';;\nisattached) ok ', \"attached\": true';;\n\
                 waitforattach) ok ', \"device\": \"/dev/e2e1\"';;\nmountdevice) mount -t tmpfs tmpfs $2 && ok;;\n\
                 unmountdevice) umount $2 && ok;;\ndetach) ok;;");
    let (one, two) = (plain(&rig, "u1"), plain(&rig, "u2"));
    let Work::Flex(flex) = &one.work else { panic!("{one:?}") };
    assert_eq!(rig.is_set_up("u1", &one).await, Ok(done(Capabilities::default(), None, None)));
    let global = format!("mountdevice {} /dev/e2e1", flex.global);
    let mount = format!("mount {}", one.path);
    // The driver does not support `mount`: the node binds its mount for all pods.
    assert_eq!(scripts.log(), ["init", "getvolumename", "attach", "waitforattach /dev/e2e", &global, &mount]);
    let written = on_disk::records(&root).unwrap();
    assert_eq!(written[0].device.as_deref(), Some("/dev/e2e"));
    assert!(is_mounted(&one));

    let mut rig = rig.again();
    assert_eq!(rig.is_set_up("u2", &two).await, Ok(done(Capabilities::default(), None, None)));
    let mount = format!("mount {}", two.path);
    assert_eq!(scripts.log(), ["init", "getvolumename", "isattached", "waitforattach /dev/e2e", &mount]);
    let held = |root: &Path| on_disk::on_disk(root).unwrap()[&flex.key()].pods.len();
    assert_eq!(held(&root), 2);
    for uid in ["u1", "u2"] {
        assert_eq!(rig.is_torn_down(uid).await, Ok(EffectOk::Done));
    }
    assert_eq!(held(&root), 0);
    // No pod uses the volume any more: the owner of the table of stages cleans it up.
    let gone = async {
        while !on_disk::records(&root).unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("given back");
    let last: Vec<String> = scripts.log().into_iter().rev().take(2).rev().collect();
    assert_eq!(last, [format!("unmountdevice {}", flex.global), "detach v n".to_owned()]);
    assert!(!Path::new(&flex.global).exists());
}

#[tokio::test]
async fn a_walk_that_outlives_its_effect_is_not_begun_again_and_the_volume_is_there_in_the_end() {
    if !is_root() {
        return;
    }
    let mut rig = rig_in(tempfile::tempdir().unwrap(), 1);
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let slow = move |path: &Path, group: u32, progress: &Progress| {
        begin.send(()).unwrap();
        let released = released.lock().unwrap();
        while !progress.is_ended() && released.recv_timeout(Duration::from_millis(5)).is_err() {}
        ownership::give(path, group, false, progress)
    };
    rig.executor.ownership = Ownership::by(Arc::new(slow));
    let scripts = Scripts::new(rig.dir.path());
    scripts.put(PLAIN);
    let set_up = plain(&rig, "u");
    let effect = || Effect::SetUpVolume { volume: Box::new(set_up.clone()) };
    let cancel = rig.start_of(&key("u"), 1, effect(), Some(120));
    begun.recv().await.unwrap();
    cancel.cancel();
    assert_eq!(rig.answer().await.1.unwrap_err().class, Class::DeadlineExceeded);
    assert_eq!(scripts.log(), ["init".to_owned(), format!("mount {}", set_up.path)]);
    // The deadline of the next effect passes before the walk ends, too.
    rig.start_of(&key("u"), 2, effect(), Some(1));
    assert_eq!(rig.answer().await.1.unwrap_err().class, Class::DeadlineExceeded);
    rig.start_of(&key("u"), 3, effect(), Some(120));
    release.send(()).unwrap();
    assert_eq!(rig.answer().await.1, Ok(done(Capabilities::default(), None, None)));
    let gid = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(&set_up.path).unwrap());
    assert_eq!((gid, begun.try_recv().is_err()), (4242, true), "given, and begun once");
    assert!(scripts.log().is_empty(), "the driver was asked once");

    // The tear-down of a pod ends the pod's walk.
    let other = plain(&rig, "u2");
    let cancel =
        rig.start_of(&key("u2"), 4, Effect::SetUpVolume { volume: Box::new(other.clone()) }, Some(120));
    begun.recv().await.unwrap();
    cancel.cancel();
    rig.answer().await.1.unwrap_err();
    assert!(is_mounted(&other));
    assert_eq!(rig.is_torn_down("u2").await, Ok(EffectOk::Done));
    assert!(!is_mounted(&other) && begun.try_recv().is_err());
    assert_eq!(rig.is_torn_down("u").await, Ok(EffectOk::Done));
}
