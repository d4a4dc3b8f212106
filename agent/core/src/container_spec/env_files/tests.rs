//! The format as a table, and the resulting variables of a container.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(text: &str, key: &str) -> Result<String, String> {
    value_of(text.as_bytes(), key).map(Option::unwrap_or_default)
}

#[test]
fn values() {
    let table = [
        ("KEY='v'", "v"),
        ("  KEY='v'\n", "v"),
        ("\tKEY='v'\r\nB='x'\r\n", "v"),
        ("# KEY='no'\n\n   \nKEY='v' # said\n", "v"),
        ("KEY='v'#said", "v"),
        ("KEY='a#b=c $(d) \\n \"e\"'", "a#b=c $(d) \\n \"e\""),
        ("KEY='  a  '", "  a  "),
        ("KEY='one\ntwo\n\n# three'\n", "one\ntwo\n\n# three"),
        ("KEY='one\r\ntwo'", "one\ntwo"),
        ("A='x\nKEY=no'\nKEY='v'", "v"),
        ("KEY='first'\nKEY='second'", "first"),
        ("KEY='v'\nwhat comes after is not looked at", "v"),
        // Nothing, all of them.
        ("KEY=''", ""),
        ("KEY= 'v'", ""),
        ("KEY=\t'v'", ""),
        ("OTHER= what\nKEY=''", ""),
        ("", ""),
        ("key='v'", ""),
        ("KEYS='v'", ""),
    ];
    for (text, value) in table {
        assert_eq!(read(text, "KEY").as_deref(), Ok(value), "{text:?}");
    }
}

#[test]
fn what_is_no_file_of_variables() {
    let table = [
        ("KEY", "at line 1: missing '='"),
        ("\n\n='v'", "at line 3: empty variable name"),
        (" \t='v'", "at line 1: empty variable name"),
        ("A='x'\nKEY ='v'", "at line 2: whitespace before '=' is not allowed"),
        ("KEY=v", "at line 1: value must be enclosed in single quotes"),
        ("KEY=", "at line 1: value must be enclosed in single quotes"),
        ("KEY=\"v\"", "at line 1: value must be enclosed in single quotes"),
        ("KEY='a' b", "at line 1: unexpected content after closing quote"),
        ("A='a\nb'c'\nKEY='v'", "at line 2: unexpected content after closing quote"),
        ("A='a'\nKEY='b\n\n", "starting at line 2: unclosed single quote"),
    ];
    for (text, words) in table {
        let said = read(text, "KEY").unwrap_err();
        assert!(
            said.starts_with("invalid environment variable format") && said.ends_with(words),
            "{text:?}: {said}"
        );
    }
    let long = |n: usize| format!("A='x'\nKEY='{}'\n", "x".repeat(n));
    assert_eq!(read(&long(LINE_MAX - 6), "KEY").unwrap().len(), LINE_MAX - 6);
    assert_eq!(read(&long(LINE_MAX - 5), "KEY"), Err("line 2 is longer than 65535 bytes".to_owned()));
    assert_eq!(read(&long(LINE_MAX), "A").as_deref(), Ok("x"), "it is not reached");
}

fn pod(source: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "n", "rbd": {"monitors": ["m"], "image": "i"}}],
        "containers": [{"name": "c", "env": [{"name": "A", "value": "a"},
            {"name": "V", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "B", "valueFrom": {"fileKeyRef": source}}]}]}}))
    .unwrap()
}

fn source(p: &Pod) -> &FileKeySelector {
    let env = pod::containers(p)[0].env.as_ref().unwrap();
    env[2].value_from.as_ref().unwrap().file_key_ref.as_ref().unwrap()
}

const ROOT: &str = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/e";

#[test]
fn files_of_a_container() {
    let p = pod(json!({"volumeName": "e", "path": "d/x.env", "key": "K"}));
    let mut node = NodeContext::new("n");
    let own = EnvFile { root: ROOT.to_owned(), path: "d/x.env".to_owned() };
    assert_eq!(files(&p, &pod::containers(&p)[0], &node), Ok([own].into()));
    for name in ["none", "n"] {
        let p = pod(json!({"volumeName": name, "path": "x", "key": "K"}));
        let error = files(&p, &pod::containers(&p)[0], &node).unwrap_err();
        assert_eq!(error.message, format!("cannot find the volume \"{name}\" referenced by FileKeyRef"));
        assert_eq!(error.reason, "CreateContainerConfigError");
    }
    node.features.env_files = false;
    assert_eq!(files(&p, &pod::containers(&p)[0], &node), Ok(BTreeSet::new()));
}

#[test]
fn a_key_that_is_missing_counts_unless_it_is_optional_and_a_broken_file_always() {
    let node = NodeContext::new("n");
    let of = |optional: bool, text: Result<&str, &str>| {
        let p = pod(json!({"volumeName": "e", "path": "/x", "key": "K", "optional": optional}));
        let text = text.map(|t| t.as_bytes().to_vec()).map_err(str::to_owned);
        let read = EnvFiles::from([(EnvFile { root: ROOT.to_owned(), path: "/x".to_owned() }, text)]);
        value(&p, source(&p), &read, &node).map_err(|e| e.message)
    };
    assert_eq!(of(false, Ok("K='v'")), Ok(Some("v".to_owned())));
    assert_eq!(of(true, Ok("L='v'")), Ok(None));
    let missing = Err(format!("environment variable key \"K\" not found in file \"{ROOT}/x\""));
    assert_eq!(of(false, Ok("L='v'")), missing);
    assert_eq!(of(false, Ok("K=''")), missing, "nothing is as good as missing");
    for optional in [false, true] {
        assert_eq!(of(optional, Err("ENOENT")), Err("couldn't parse env file: /x: ENOENT".to_owned()));
        assert!(of(optional, Ok("K")).unwrap_err().starts_with("couldn't parse env file: /x: invalid"));
    }
    let p = pod(json!({"volumeName": "e", "path": "x", "key": "K"}));
    let error = value(&p, source(&p), &EnvFiles::new(), &node).unwrap_err();
    assert_eq!(error.message, "couldn't parse env file: x: it was not read");
}

proptest! {
    #[test]
    fn never_panics(text in prop::collection::vec(prop::sample::select(b"K='\n\r #\tx\xff".to_vec()), 0..40)) {
        let _ = value_of(&text, "K");
    }

    #[test]
    fn what_a_file_says_comes_back(pairs in prop::collection::vec(("[A-C]", "[^'\r]{1,8}"), 0..5)) {
        let text: String = pairs.iter().map(|(k, v)| format!("{k}='{v}'\n")).collect();
        for key in ["A", "B", "C"] {
            let first = pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
            prop_assert_eq!(value_of(text.as_bytes(), key), Ok(first));
        }
    }
}
