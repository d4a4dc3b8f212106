//! Files that the node's configuration brings (`files`): what is written, what goes, and the list of what init has written.
//!
//! The list is on the state partition, below /var. Invariants: a file is on the list before it is written, so that a power
//! cut leaves none for ever; only files on the list are removed, and only if the configuration was read whole
//! and has them no more; a path outside of the places for such files is never taken from the list.

use super::step::BootStep;
use orlop_config::node::{NodeConfig, derive, place_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The list, below /var.
pub const LIST: &str = "lib/orlop/config/files.json";
/// Largest list that is read, bytes: more than the paths of the largest documents.
pub const BYTES_MAX: u64 = 4 << 20;

/// Reads a list: the paths as documents name them.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Vec<String>, String> {
    let list: Value = serde_json::from_str(text).map_err(|e| format!("it is damaged: {e}"))?;
    if list["version"] != 1 {
        return Err("its version is not 1: another image has written it".into());
    }
    let paths = list["paths"].as_array().ok_or("it has no paths")?;
    let paths = paths.iter().filter_map(Value::as_str).filter(|path| place_of(path).is_some());
    Ok(paths.map(str::to_owned).collect())
}

fn render(paths: &BTreeSet<&str>) -> String {
    format!("{}\n", json!({ "version": 1, "paths": paths }))
}

/// The steps, in order. `written` is the list as this boot found it; with `refused` nothing is removed, because what was
/// refused may have been a file's own document.
#[must_use]
pub fn steps(config: &NodeConfig, var: &str, written: &[String], refused: bool) -> Vec<BootStep> {
    let files = derive::placed_files(config);
    let wanted: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let before: BTreeSet<&str> = written.iter().map(String::as_str).collect();
    if wanted.is_empty() && before.is_empty() {
        return Vec::new();
    }
    let list = |paths: &BTreeSet<&str>| BootStep::WriteFile {
        path: format!("{var}/{LIST}"),
        mode: 0o600,
        content: render(paths).into_bytes(),
    };
    let mut steps = vec![list(&wanted.union(&before).copied().collect())];
    let stale = before.difference(&wanted).filter(|_| !refused);
    steps.extend(stale.filter_map(|path| {
        Some(BootStep::RemovePlacedFile { path: (*path).to_owned(), below_var: place_of(path)? })
    }));
    steps.extend(files.iter().cloned().map(BootStep::PlaceFile));
    if !refused && wanted != before {
        steps.push(list(&wanted));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::node::{Source, load};

    fn config(body: &str) -> NodeConfig {
        let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
        let effective = load(&[Source { name: "esp".into(), origin: "ESP".into(), text }], &[]);
        assert_eq!(effective.problems, []);
        effective.config
    }

    /// The steps in short: lists by their paths, files by theirs.
    fn shown(steps: &[BootStep]) -> Vec<String> {
        let list = |content: &[u8]| {
            let paths = parse(std::str::from_utf8(content).expect("text")).expect("a list");
            format!("list {}", paths.join(" "))
        };
        steps
            .iter()
            .map(|step| match step {
                BootStep::WriteFile { path, mode: 0o600, content }
                    if path == "/v/lib/orlop/config/files.json" =>
                {
                    list(content)
                }
                BootStep::PlaceFile(file) => format!("write {}", file.below_var),
                BootStep::RemovePlacedFile { below_var, .. } => format!("remove {below_var}"),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    const TWO: &str =
        "files: [{path: /etc/kubernetes/a, content: x}, {path: /var/lib/orlop/files/b, content: y}]";

    #[test]
    fn a_file_is_listed_before_it_is_written() {
        let steps = steps(&config(TWO), "/v", &[], false);
        assert_eq!(
            shown(&steps),
            [
                "list /etc/kubernetes/a /var/lib/orlop/files/b",
                "write lib/orlop/kubernetes/a",
                "write lib/orlop/files/b",
                "list /etc/kubernetes/a /var/lib/orlop/files/b",
            ]
        );
        assert_eq!(super::steps(&config(""), "/v", &[], false), []);
    }

    #[test]
    fn a_file_that_the_configuration_has_no_more_goes() {
        let before = ["/etc/kubernetes/old", "/etc/kubernetes/a"].map(String::from);
        let one = config("files: [{path: /etc/kubernetes/a, content: x}]");
        assert_eq!(
            shown(&steps(&one, "/v", &before, false)),
            [
                "list /etc/kubernetes/a /etc/kubernetes/old",
                "remove lib/orlop/kubernetes/old",
                "write lib/orlop/kubernetes/a",
                "list /etc/kubernetes/a",
            ]
        );
        assert_eq!(
            shown(&steps(&one, "/v", &before, true)),
            ["list /etc/kubernetes/a /etc/kubernetes/old", "write lib/orlop/kubernetes/a"],
            "what was refused may have been the file's own document"
        );
        assert_eq!(
            shown(&steps(&config(""), "/v", &before[1..], false)),
            ["list /etc/kubernetes/a", "remove lib/orlop/kubernetes/a", "list "]
        );
        // The boot after that one has an empty list, and nothing to do.
        assert_eq!(steps(&config(""), "/v", &[], false), []);
    }

    #[test]
    fn a_list_is_not_believed() {
        assert_eq!(
            parse(&render(&BTreeSet::from(["/etc/kubernetes/a"]))),
            Ok(vec!["/etc/kubernetes/a".into()])
        );
        let foreign = r#"{"version": 1, "paths": ["/etc/passwd", "/var/lib/orlop/files/../x", 7, "/etc/kubernetes/b"]}"#;
        assert_eq!(parse(foreign), Ok(vec!["/etc/kubernetes/b".into()]));
        for (text, why) in [
            ("", "damaged"),
            ("{}", "version"),
            ("{\"version\": 2}", "version"),
            ("{\"version\": 1}", "no paths"),
        ] {
            assert!(parse(text).expect_err(text).contains(why), "{text}");
        }
    }
}
