//! Rule about the end-to-end cases: a case is found by its name.
//!
//! In: the Rust files below `qemu-tests/src/cases`. Out: a finding for each case of another area than its folder, and for each
//! case that neither the name nor the header of its file names. The case `volumes/csi-claims` is registered in
//! `cases/volumes/csi_claims.rs`; a file of several cases lists them in its header.

use crate::Finding;
use crate::tree::SourceFile;

/// Folder of the cases; its folders are the areas.
pub const CASES: &str = "qemu-tests/src/cases/";

/// Each case is in the folder of its area, in a file that is named as the case or whose header names the case.
#[must_use]
pub fn places(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|f| f.is_rust() && f.path.starts_with(CASES)).flat_map(of_file).collect()
}

fn of_file(file: &SourceFile) -> Vec<Finding> {
    let path = &file.path[CASES.len()..];
    let area = path.split('/').next().unwrap_or_default();
    let stem = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    let header: Vec<&str> =
        file.lines().map(|(_, line)| line).take_while(|line| line.starts_with("//!")).collect();
    let header = header.join("\n");
    let mut findings = Vec::new();
    for (line, name) in registered(file) {
        let (of, rest) = name.split_once('/').unwrap_or(("", name));
        let message = if of != area {
            format!("registers `{name}`: a case of the area `{of}` belongs into {CASES}{of}/")
        } else if rest.replace('-', "_") != stem && !header.contains(&format!("`{name}`")) {
            let wanted = rest.replace('-', "_");
            format!("registers `{name}`: name the file {wanted}.rs, or list its cases in its header")
        } else {
            continue;
        };
        findings.push(Finding::new(&file.path, line, message));
    }
    findings
}

/// The cases that the file registers, with their lines: `DEFAULTS.case("…", …)` or `Case { name: "…", … }`.
fn registered(file: &SourceFile) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut begun = false;
    for (number, line) in file.lines() {
        let line = line.trim();
        let name = if begun { Some(line) } else { after(line, ".case(").or_else(|| after(line, "name: ")) };
        // rustfmt puts the name on the next line if the call does not fit on one.
        begun = name == Some("");
        if let Some(name) = name.and_then(literal).filter(|name| name.contains('/') && !name.contains(' ')) {
            names.push((number, name));
        }
    }
    names
}

fn after<'a>(line: &'a str, start: &str) -> Option<&'a str> {
    if line.starts_with("//") {
        return None;
    }
    line.split_once(start).map(|(_, rest)| rest)
}

fn literal(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = SourceFile::of(&format!("{CASES}{path}"), text);
        places(&[file]).into_iter().map(|f| (f.line, f.message)).collect()
    }

    #[test]
    fn a_case_in_the_folder_of_another_area_is_found() {
        for text in [
            "//! About.\nconst CASES: &[Case] = &[HERE.case(\"boot/disks\", 2, \"about\", disks)];\n",
            "//! About `boot/disks`.\n    HERE.case(\n        \"boot/disks\",\n",
            "//! About.\nCase {\n    name: \"boot/disks\",\n",
        ] {
            let found = found("volumes/disks.rs", text);
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].1.contains("cases/boot/"), "{found:?}");
        }
        let text = "//! About.\n\nHERE.case(\n    \"api/logs\",\n";
        assert_eq!(found("join/logs.rs", text)[0].0, 4);
    }

    #[test]
    fn a_case_that_neither_name_nor_header_names_is_found() {
        let text = "//! About.\n//! Cases: `api/logs`.\nHERE.case(\"api/logs\", 1);\nHERE.case(\"api/logs-follow\", 1);\n";
        let found = found("api/access.rs", text);
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4], "{found:?}");
        assert!(found[0].1.contains("logs_follow.rs"), "{found:?}");
    }

    #[test]
    fn cases_in_their_places_and_other_names_pass() {
        for (path, text) in [
            ("volumes/csi_claims.rs", "//! About.\nHERE.case(\"volumes/csi-claims\", 1);\n"),
            (
                "api/access.rs",
                "//! Cases: `api/healthz-auth`,\n//! `api/refused`.\nHERE.case(\"api/refused\", 1);\n",
            ),
            ("api/logs.rs", "//! About.\n// HERE.case(\"boot/logs\")\nlet pod = Pod { name: \"a name\" };\n"),
        ] {
            assert!(found(path, text).is_empty(), "{path}");
        }
        assert!(places(&[SourceFile::of("qemu-tests/src/cases.rs", "HERE.case(\"a/b\", 1)")]).is_empty());
    }
}
