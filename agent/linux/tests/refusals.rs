//! Every write of the small drivers refused, one after the other, and cut off there (docs/internals/testing.md, faults).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use agent_faults::{Call, FileOperation, mounted, survives, survives_as};
use agent_kubelet_api::logs::rotation::Policy;
use agent_linux::files::{self, Durability, FilesError};
use agent_linux::remove_tree::remove_tree;
use agent_linux::volumes::{self, VolumeError, csi, sub_path};
use agent_linux::{log_rotation, pstore};
use agent_types::time::Wall;
use agent_volumes::bind::Bind;
use agent_volumes::csi::VolumeData;
use agent_volumes::key::VolumeKey;
use agent_volumes::payload::Payload;
use agent_volumes::plugin::Plugin;
use agent_volumes::sub_path::{SUB_PATHS, SubPath};
use agent_volumes::{FileContent, Medium, SetUp, Work};

fn names(calls: &[Call]) -> Vec<String> {
    calls.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_is_the_old_one_or_the_new_one() {
    let beside = files::temporary_name("a".as_ref());
    let [create, write, chmod] = ["openat", "write", "chmod"].map(|call| format!("{call} of {beside}"));
    for (durability, synced) in [(Durability::Rebuildable, false), (Durability::Synced, true)] {
        let calls = survives(&FileOperation {
            prepare: &|root| fs::write(root.join("a"), "old").unwrap(),
            act: &|root| files::write_atomic(&root.join("a"), b"new", 0o640, durability),
            look: &|root| {
                let text = fs::read_to_string(root.join("a")).unwrap();
                assert!(["old", "new"].contains(&text.as_str()), "{text:?}");
            },
        });
        let mut wanted = vec![format!("unlink of {beside}"), create.clone(), write.clone(), chmod.clone()];
        wanted.extend(synced.then(|| format!("fsync of {beside}")));
        wanted.push("rename of a".to_owned());
        wanted.extend(synced.then(|| "fsync of ".to_owned()));
        assert_eq!(names(&calls), wanted);
    }
}

#[test]
fn directories_are_made_in_the_end() {
    let calls = survives(&FileOperation {
        prepare: &|_| (),
        act: &|root| files::make_dir(&root.join("pods/u/volumes"), 0o750),
        look: &|_| (),
    });
    assert!(calls.len() >= 4, "{calls:?}");
}

#[test]
fn a_tree_goes_and_nothing_beside_it() {
    survives(&FileOperation {
        prepare: &|root| {
            fs::create_dir_all(root.join("pods/u/volumes/v")).unwrap();
            for file in ["pods/u/etc-hosts", "pods/u/volumes/v/x", "pods/other"] {
                fs::write(root.join(file), "x").unwrap();
            }
        },
        act: &|root| remove_tree(&root.join("pods/u")),
        look: &|root| assert!(root.join("pods/other").exists()),
    });
}

#[test]
fn last_words_of_a_kernel_are_in_one_of_two_places() {
    let of = |root: &Path| ["store/dmesg-1", "store/dmesg-2"].map(|name| root.join(name));
    let calls = survives(&FileOperation {
        prepare: &|root| {
            fs::create_dir(root.join("store")).unwrap();
            for record in of(root) {
                fs::write(record, "Oops").unwrap();
            }
        },
        act: &|root| pstore::archive(&root.join("store"), &root.join("kept/boot")),
        look: &|root| {
            for record in of(root) {
                let copy = root.join("kept/boot").join(record.file_name().unwrap());
                let text = fs::read_to_string(&record).or_else(|_| fs::read_to_string(copy)).unwrap();
                assert_eq!(text, "Oops");
            }
        },
    });
    assert!(names(&calls).contains(&"unlink of store/dmesg-2".to_owned()), "{calls:?}");
}

fn lines_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    if path.extension().is_some_and(|ending| ending == "gz") {
        flate2::read::GzDecoder::new(file).read_to_string(&mut text)?;
    } else {
        (&file).read_to_string(&mut text)?;
    }
    Ok(text)
}

#[test]
fn no_line_of_a_log_is_lost() {
    let before =
        BTreeMap::from([("0.log.19700102-000000", "first\n"), ("0.log.19700103-000000", "second\n")]);
    let rotate = |root: &Path| {
        let log = root.join("0.log");
        if log_rotation::size(&log)?.is_none() {
            return Ok(());
        }
        let tidied = log_rotation::tidy(&log, &Policy::new(1, 5).unwrap())?;
        tidied.failures.into_iter().next().map_or(Ok(()), Err)?;
        log_rotation::set_aside(&log, Wall(3 * 24 * 3600 * 1_000_000_000)).map(drop)
    };
    let calls = survives(&FileOperation::<(), FilesError> {
        prepare: &|root| {
            fs::write(root.join("0.log"), "third\n").unwrap();
            before.iter().for_each(|(name, text)| fs::write(root.join(name), text).unwrap());
        },
        act: &rotate,
        look: &|root| {
            for (name, text) in &before {
                // A copy counts when the original is gone.
                let kept = lines_of(&root.join(name)).or_else(|_| lines_of(&root.join(format!("{name}.gz"))));
                assert_eq!(kept.unwrap(), *text);
            }
            let kept =
                lines_of(&root.join("0.log")).or_else(|_| lines_of(&root.join("0.log.19700104-000000")));
            assert_eq!(kept.unwrap(), "third\n");
        },
    });
    assert!(names(&calls).contains(&"fsync of 0.log.19700102-000000.tmp".to_owned()), "{calls:?}");
}

#[test]
fn whose_a_csi_volume_is_is_known_until_its_driver_has_let_go() {
    let data = VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), rest: BTreeMap::new() };
    let target = |root: &Path| root.join("pods/u/volumes/kubernetes.io~csi/v/mount");
    let recorded = |root: &Path| csi::recorded(&root.join("pods/u")).unwrap();
    survives(&FileOperation {
        prepare: &|_| (),
        act: &|root| csi::prepare(&root.join("pods/u"), &target(root), &data).map(drop),
        look: &|root| assert!(recorded(root).len() <= 1),
    });
    survives(&FileOperation {
        prepare: &|root| {
            csi::prepare(&root.join("pods/u"), &target(root), &data).unwrap();
            fs::create_dir(target(root)).unwrap();
        },
        act: &|root| csi::released(&target(root)),
        // What is left still belongs to its volume, or it is an empty directory that belongs to none.
        look: &|root| assert!(recorded(root).iter().all(|(_, found)| *found == data)),
    });
}

#[test]
fn whose_a_staged_volume_is_is_known_until_its_driver_has_let_go() {
    let key = VolumeKey { driver: "d".to_owned(), handle: "h".to_owned() };
    let data = VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), rest: BTreeMap::new() };
    survives(&FileOperation {
        prepare: &|_| (),
        act: &|root| csi::prepare_stage(root, &key, &data).map(drop),
        look: &|root| assert!(csi::staged(root).unwrap().iter().all(|found| *found == data)),
    });
    survives(&FileOperation {
        prepare: &|root| drop(csi::prepare_stage(root, &key, &data).unwrap()),
        act: &|root| csi::unstaged(root, &key),
        look: &|root| assert!(csi::staged(root).unwrap().iter().all(|found| *found == data)),
    });
}

/// The volume of files of pod `u` below `root`.
fn volume(root: &Path, work: Work) -> SetUp {
    let path = root.join("pods/u/volumes/kubernetes.io~x/v").display().to_string();
    SetUp { name: "v".to_owned(), plugin: Plugin::ConfigMap, path, work, nested: Vec::new(), fs_group: None }
}

fn marker(root: &Path) -> String {
    root.join("pods/u/plugins/kubernetes.io~empty-dir/wrapped_v").display().to_string()
}

fn set_up_files(root: &Path, files: &[(&str, &str)]) -> Result<(), VolumeError> {
    let work =
        Work::Files { medium: Medium::Disk, marker: marker(root), sources: Vec::new(), projected: false };
    let content = |data: &str| FileContent { data: data.as_bytes().to_vec(), mode: 0o640, user: None };
    let payload = files.iter().map(|(path, data)| ((*path).to_owned(), content(data))).collect();
    volumes::set_up(&root.join("pods/u"), &volume(root, work), &payload, Wall(0)).map(drop)
}

/// What a container sees in the volume.
fn seen(root: &Path) -> BTreeMap<String, String> {
    let volume = root.join("pods/u/volumes/kubernetes.io~x/v");
    let text = |path: &Path| fs::read_to_string(volume.join(path)).ok();
    let names = ["a", "d/x", "d/y", "e"];
    names.iter().filter_map(|name| Some(((*name).to_owned(), text(Path::new(name))?))).collect()
}

#[test]
fn a_container_sees_all_files_of_one_version() {
    const OLD: [(&str, &str); 3] = [("a", "1"), ("d/x", "1"), ("d/y", "1")];
    const NEW: [(&str, &str); 3] = [("a", "2"), ("d/x", "2"), ("e", "2")];
    let calls = survives_as(
        &FileOperation {
            prepare: &|root| set_up_files(root, &OLD).unwrap(),
            act: &|root| set_up_files(root, &NEW),
            look: &|root| {
                let seen = seen(root);
                // A new name shows once its link is made: what there is, is of one version.
                let versions: BTreeSet<&String> = seen.values().collect();
                assert!(versions.len() == 1 && seen.len() >= 2, "{seen:?}");
            },
        },
        |root| {
            // Versions are numbered: one that was begun before has left its number, and nothing else, to the next one.
            let path = root.join("pods/u/volumes/kubernetes.io~x/v");
            let names = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> =
                names.map(|n| n.trim_end_matches(char::is_numeric).to_owned()).collect();
            names.sort();
            (seen(root), names)
        },
    );
    assert!(names(&calls).iter().any(|call| call.starts_with("rename of ") && call.ends_with("/..data")));
    let calls = survives(&FileOperation {
        prepare: &|_| (),
        act: &|root| {
            let work = Work::EmptyDir { medium: Medium::Disk, marker: marker(root), counted: false };
            volumes::set_up(&root.join("pods/u"), &volume(root, work), &Payload::new(), Wall(0)).map(drop)
        },
        look: &|_| (),
    });
    assert!(calls.len() > 5, "{calls:?}");
}

/// What is mounted where, and what is seen there.
type Sight = BTreeMap<String, (usize, String)>;

/// Directories and files of the pod; on which of them something is mounted, how often; what is in the files.
fn sight(root: &Path) -> Sight {
    let mounts = mounted::below(root);
    let mut all = Sight::new();
    let mut rest = vec![root.to_owned()];
    while let Some(path) = rest.pop() {
        if path.is_dir() {
            rest.extend(fs::read_dir(&path).expect("readable").map(|e| e.expect("readable").path()));
        }
        let name = path.strip_prefix(root).expect("below").display().to_string();
        let text = fs::read_to_string(&path).unwrap_or_default();
        all.insert(name, (mounts.iter().filter(|m| **m == path).count(), text));
    }
    all
}

/// The data of the volume that a pod is given a part of, or the whole.
fn make_disk(root: &Path) {
    fs::create_dir_all(root.join("disk/there")).expect("made");
    fs::write(root.join("disk/there/f"), "precious").expect("written");
}

fn is_unharmed(root: &Path) {
    assert_eq!(fs::read_to_string(root.join("disk/there/f")).expect("there"), "precious");
}

/// Everything that one of these can have of mounts: a tmpfs, a directory with a group, a part that is there and one that
/// is made.
fn with_mounts(root: &Path) -> Vec<Box<dyn Fn() -> Result<(), VolumeError> + '_>> {
    let pod = move || root.join("pods/u");
    let part = move |path: &str| SubPath {
        volume: "v".to_owned(),
        container: "c".to_owned(),
        root: root.join("disk").display().to_string(),
        path: path.to_owned(),
        target: pod().join(SUB_PATHS).join("v/c").join(path.len().to_string()).display().to_string(),
    };
    let tmpfs = move || {
        let work = Work::EmptyDir { medium: Medium::Memory(1 << 20), marker: marker(root), counted: false };
        volumes::set_up(&pod(), &volume(root, work), &Payload::new(), Wall(0)).map(drop)
    };
    let bound = move || {
        let source = root.join("disk").display().to_string();
        let options = vec!["nosuid".to_owned()];
        let work = Work::Bind(Bind { source, options, one_pod: true, ..Bind::default() });
        let volume = SetUp { fs_group: Some(4711), ..volume(root, work) };
        volumes::set_up(&pod(), &volume, &Payload::new(), Wall(0)).map(drop)
    };
    vec![
        Box::new(tmpfs),
        Box::new(bound),
        Box::new(move || sub_path::mount_part(&pod(), &part("there"))),
        Box::new(move || sub_path::mount_part(&pod(), &part("made/for/it"))),
    ]
}

#[test]
fn what_is_mounted_is_mounted_once_and_goes_in_the_end() {
    if !agent_linux::process::is_root() {
        eprintln!("not tried: only root may mount");
        return;
    }
    for (number, mount) in ["tmpfs", "bound", "part", "part that is made"].into_iter().enumerate() {
        let set_up = |root: &Path| with_mounts(root)[number]();
        let looked = |root: &Path| {
            is_unharmed(root);
            assert!(mounted::below(root).len() <= 1, "{mount}: {:?}", mounted::below(root));
        };
        let calls = survives_as(&FileOperation { prepare: &make_disk, act: &set_up, look: &looked }, sight);
        assert!(names(&calls).iter().any(|call| call.starts_with("mount of ")), "{mount}: {calls:?}");
        let mounted_before = |root: &Path| {
            make_disk(root);
            set_up(root).unwrap();
        };
        let tear_down = |root: &Path| volumes::tear_down(&root.join("pods/u"));
        let calls = survives_as(
            &FileOperation { prepare: &mounted_before, act: &tear_down, look: &looked },
            |root| {
                assert!(mounted::below(root).is_empty(), "{mount}");
                sight(root)
            },
        );
        assert!(names(&calls).iter().any(|call| call.starts_with("umount of ")), "{mount}: {calls:?}");
    }
}
