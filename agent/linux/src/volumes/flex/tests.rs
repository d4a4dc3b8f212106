//! Marks, records, and whose a volume is.

use std::collections::BTreeMap;

use agent_volumes::Work;

use super::super::give;
use super::*;

struct Node {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("kubelet");
    fs::create_dir_all(root.join("pods")).unwrap();
    Node { _dir: dir, root }
}

impl Node {
    fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    fn volume(&self, uid: &str, driver: &str) -> (SetUp, Flex) {
        let driver = Driver::new(driver).unwrap();
        let root = self.root.display();
        let flex = Flex {
            global: format!("{root}/plugins/{}/{}/mounts/v", Plugin::Flex.name(), driver.name()),
            mark: self.pod(uid).join(driver.mark_below("v")).display().to_string(),
            driver,
            volume: "v".to_owned(),
            fs_type: String::new(),
            options: BTreeMap::new(),
            secret: None,
            read_only: false,
            one_pod: false,
            by_root: false,
            pod: "p".to_owned(),
            namespace: "ns".to_owned(),
            uid: uid.to_owned(),
            account: String::new(),
            node: "n".to_owned(),
            claim: None,
        };
        let set_up = SetUp {
            name: "v".to_owned(),
            plugin: Plugin::Flex,
            path: self.pod(uid).join(flex.driver.below("v")).display().to_string(),
            work: Work::Flex(Box::new(flex.clone())),
            nested: Vec::new(),
            fs_group: None,
        };
        (set_up, flex)
    }
}

#[test]
fn a_set_up_is_marked_before_it_begins_and_when_it_is_done() {
    let node = node();
    let (own, (volume, flex)) = (node.pod("u"), node.volume("u", "vendor/driver"));
    assert_eq!(look(&own, &volume, &flex).unwrap(), FlexVolumeState::default());
    assert!(held(&own).unwrap().is_empty() && !has_any(&own));
    for _ in 0..2 {
        prepare(&own, &volume, &flex).unwrap();
        assert!(Path::new(&volume.path).is_dir() && !look(&own, &volume, &flex).unwrap().ready);
    }
    let expected = FlexPodVolume {
        driver: flex.driver.clone(),
        path: PathBuf::from(&volume.path),
        mounted: false,
        asked: true,
        before_boot: false,
    };
    assert_eq!((held(&own).unwrap(), has_any(&own)), (vec![expected.clone()], true));
    // The empty one is what a power cut leaves.
    for earlier in ["", "another"] {
        fs::write(Path::new(&flex.mark).join(BOOT), earlier).unwrap();
        assert!(held(&own).unwrap()[0].before_boot);
    }
    finish(&volume, &flex, None, &give).unwrap();
    assert!(look(&own, &volume, &flex).unwrap().ready);
    let (other, flex_of_other) = node.volume("u2", "vendor/driver");
    assert!(!look(&node.pod("u2"), &other, &flex_of_other).unwrap().others);
    let alone = Flex { one_pod: true, ..flex_of_other };
    assert!(look(&node.pod("u2"), &other, &alone).unwrap().others);

    // Another kubelet's volume is known by its directory alone; those of the node's own plugins are not drivers'.
    fs::remove_dir_all(own.join("plugins")).unwrap();
    fs::create_dir_all(own.join("volumes/kubernetes.io~secret/s")).unwrap();
    assert_eq!(held(&own).unwrap(), [FlexPodVolume { asked: false, ..expected }]);
    end_parts(&own).unwrap();

    // What a driver left there is not removed.
    let file = Path::new(&volume.path).join("f");
    fs::write(&file, "kept").unwrap();
    abandon(&volume);
    released(Path::new(&volume.path)).unwrap_err();
    assert!(file.exists());
    fs::remove_file(&file).unwrap();
    for _ in 0..2 {
        released(Path::new(&volume.path)).unwrap();
    }
    assert!(held(&own).unwrap().is_empty());
}

#[test]
fn a_record_says_which_pods_have_a_volume() {
    let node = node();
    let (volume, flex) = node.volume("u", "vendor/driver");
    assert!(records(&node.root).unwrap().is_empty() && on_disk(&node.root).unwrap().is_empty());
    let record = flex.record(true);
    write(&node.root, &record).unwrap();
    assert_eq!(records(&node.root).unwrap(), std::slice::from_ref(&record));
    let held = &on_disk(&node.root).unwrap()[&flex.key()];
    assert!(held.staged && held.attached && held.pods.is_empty());
    prepare(&node.pod("u"), &volume, &flex).unwrap();
    let held = &on_disk(&node.root).unwrap()[&flex.key()];
    assert_eq!(held.pods.iter().map(ToString::to_string).collect::<Vec<_>>(), ["u"]);

    // An attachment by the node itself is not reported.
    let own = Record { device: Some("/dev/x".to_owned()), ..flex.record(false) };
    write(&node.root, &own).unwrap();
    assert_eq!(record_like(&node.root, &record).unwrap(), Some(own.clone()));
    assert!(!on_disk(&node.root).unwrap()[&flex.key()].attached);
    for _ in 0..2 {
        forget(&node.root, &own).unwrap();
    }
    assert!(records(&node.root).unwrap().is_empty());

    // One that is half there, one that is another's, one that is none.
    let path = PathBuf::from(own.path(&node.root.to_string_lossy()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(records(&node.root).unwrap().is_empty());
    let other = node.volume("u", "other/driver").1.record(true);
    fs::write(&path, other.to_json().unwrap()).unwrap();
    assert!(records(&node.root).unwrap_err().source.to_string().contains("it is the record of"));
    fs::write(&path, "{").unwrap();
    records(&node.root).unwrap_err();
}

#[test]
fn what_is_mounted_for_all_pods_is_bound_and_let_go() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let node = node();
    let (own, (volume, flex)) = (node.pod("u"), node.volume("u", "vendor/driver"));
    prepare(&own, &volume, &flex).unwrap();
    assert!(bind(&volume, &flex).unwrap_err().to_string().contains("mounts nothing"));
    prepare_global(&node.root, &flex).unwrap();
    mount(Some("tmpfs"), flex.global.as_str(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    bind(&volume, &flex).unwrap();
    let seen = look(&own, &volume, &flex).unwrap();
    assert!(seen.mounted && seen.global && !seen.others && held(&own).unwrap()[0].mounted);
    let ended = |path: &Path, _| Err(FilesError::at("give", path)(ErrorKind::Interrupted.into()));
    finish(&volume, &flex, Some(4242), &ended).unwrap_err();
    assert!(!Path::new(&flex.mark).join(READY).exists(), "a walk that was ended is no end of the set-up");
    finish(&volume, &flex, Some(4242), &give).unwrap();
    assert!(ownership::is_given(Path::new(&volume.path), 4242));
    for path in [&volume.path, &flex.global] {
        assert!(is_mounted(path).unwrap());
        for _ in 0..2 {
            unmount(Path::new(path)).unwrap();
        }
        assert!(!is_mounted(path).unwrap());
        released(Path::new(path)).unwrap();
    }
}
