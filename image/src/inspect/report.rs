//! The account of an image (pure): files, reasons and budgets in; lines and faults out.

use crate::profile::Profile;
use crate::select::Contents;
use std::collections::BTreeMap;

/// Path -> component and reason, as the root step noted them.
pub(super) type Reasons = BTreeMap<String, [String; 2]>;

/// One file of the unpacked root.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// Without a leading slash.
    pub(super) path: String,
    /// Bytes.
    pub(super) size: u64,
    /// Has an execute bit.
    pub(super) program: bool,
    /// Of a script.
    pub(super) interpreter: Option<String>,
}

/// Programs that a release image may not have, also if a table lists them.
const FORBIDDEN: [&str; 17] = [
    "sh", "bash", "dash", "busybox", "zsh", "apt", "apt-get", "dpkg", "perl", "python3", "sshd", "ssh",
    "agetty", "login", "su", "sulogin", "ctr",
];

/// What was found.
pub(super) struct Report {
    programs: Vec<(String, u64, String)>,
    components: BTreeMap<String, (u64, u64)>,
    disk: Option<(u64, u64)>,
    total: u64,
    /// What must not be so; empty is good.
    pub(super) faults: Vec<String>,
}

impl Report {
    /// Accounts for every file.
    pub(super) fn new(files: &[File], reasons: &Reasons, contents: &Contents, profile: Profile) -> Report {
        let mut report = Report {
            programs: Vec::new(),
            components: contents.components.iter().map(|c| (c.name.clone(), (0, c.budget))).collect(),
            disk: None,
            total: 0,
            faults: Vec::new(),
        };
        let names: std::collections::BTreeSet<&str> = files.iter().map(|f| f.path.as_str()).collect();
        for file in files {
            report.total += file.size;
            let why = reasons.get(&file.path);
            // What mkosi indexes or normalises itself is small and no program.
            let component = why.map_or("other", |w| w[0].as_str());
            report.components.entry(component.to_owned()).or_insert((0, 1 << 21)).0 += file.size;
            let name = file.path.rsplit('/').next().unwrap_or_default();
            if profile == Profile::Release && FORBIDDEN.contains(&name) {
                report.faults.push(format!("/{} has no place in a release image", file.path));
            }
            if !file.program {
                continue;
            }
            match why {
                Some([_, reason]) => report.programs.push((file.path.clone(), file.size, reason.clone())),
                None => report
                    .faults
                    .push(format!("/{} is executable and nobody says why it is there", file.path)),
            }
            if let Some(interpreter) = &file.interpreter
                && !names.contains(interpreter.trim_start_matches('/'))
            {
                report.faults.push(format!("/{} needs {interpreter}, which is not there", file.path));
            }
        }
        if profile == Profile::Release {
            for (name, (size, budget)) in &report.components {
                if size > budget {
                    let (size, budget) = (mib(*size), mib(*budget));
                    report.faults.push(format!("{name} takes {size} MiB, its budget is {budget} MiB"));
                }
            }
        }
        report
    }

    /// Adds the disk's compressed size.
    pub(super) fn disk(&mut self, size: u64, budget: u64) {
        self.disk = Some((size, budget));
        if size > budget {
            self.faults.push(format!("the compressed disk takes {size} bytes, its budget is {budget}"));
        }
    }

    /// The account as text.
    pub(super) fn render(&self, list: bool) -> String {
        let mut out = String::new();
        if list {
            for (path, size, reason) in &self.programs {
                out.push_str(&format!("{:>9}  /{path}  -  {reason}\n", size));
            }
            out.push('\n');
        }
        out.push_str(&format!("{:<14} {:>9} {:>9}\n", "component", "MiB", "budget"));
        for (name, (size, budget)) in &self.components {
            out.push_str(&format!("{name:<14} {:>9} {:>9}\n", mib(*size), mib(*budget)));
        }
        out.push_str(&format!("{:<14} {:>9}\n", "all files", mib(self.total)));
        if let Some((size, budget)) = self.disk {
            out.push_str(&format!(
                "disk, zstd -10: {:.1} MB of {:.0} MB\n",
                megabytes(size),
                megabytes(budget)
            ));
        }
        out.push_str(&format!("{} executables, each with a reason\n", self.programs.len()));
        for fault in &self.faults {
            out.push_str(&format!("FAULT: {fault}\n"));
        }
        out
    }
}

/// The interpreter of a script's first line.
pub(super) fn interpreter(start: &[u8]) -> String {
    let line = start.split(|b| *b == b'\n').next().unwrap_or_default();
    let text = String::from_utf8_lossy(line).into_owned();
    text.trim_start_matches("#!").split_whitespace().next().unwrap_or_default().to_owned()
}

fn mib(bytes: u64) -> String {
    format!("{}.{}", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

// For people; the exact value stands in the manifest.
#[allow(clippy::cast_precision_loss)]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64, program: bool, interpreter: Option<&str>) -> File {
        File { path: path.into(), size, program, interpreter: interpreter.map(str::to_owned) }
    }

    fn report(files: &[File], profile: Profile) -> Report {
        let contents = Contents::parse("[a budget=1]\nx  y").expect("parses");
        let known = ["usr/bin/known", "usr/bin/script", "usr/bin/bash"];
        let reasons = known.map(|p| (p.to_owned(), ["a".to_owned(), "why".to_owned()])).into();
        Report::new(files, &reasons, &contents, profile)
    }

    #[test]
    fn a_good_image_has_no_faults() {
        let r = report(
            &[file("usr/bin/known", 100, true, None), file("etc/x", 1, false, None)],
            Profile::Release,
        );
        assert!(r.faults.is_empty(), "{:?}", r.faults);
        assert!(r.render(true).contains("/usr/bin/known  -  why"));
    }

    #[test]
    fn each_kind_of_fault_is_found() {
        for (bad, word) in [
            (file("usr/bin/unknown", 1, true, None), "nobody says"),
            (file("usr/bin/script", 1, true, Some("/usr/bin/perl")), "not there"),
            (file("usr/bin/known", 2 << 20, true, None), "budget"),
            (file("usr/bin/bash", 1, true, None), "no place"),
        ] {
            let r = report(std::slice::from_ref(&bad), Profile::Release);
            assert!(r.faults.iter().any(|f| f.contains(word)), "{bad:?}: {:?}", r.faults);
        }
        let mut r = report(&[], Profile::Release);
        r.disk(2, 1);
        assert_eq!(r.faults.len(), 1);
    }

    #[test]
    fn a_shell_is_fine_in_the_test_profile() {
        assert!(report(&[file("usr/bin/bash", 1, true, None)], Profile::Test).faults.is_empty());
    }

    #[test]
    fn interpreters_are_read_from_the_first_line() {
        assert_eq!(interpreter(b"#! /bin/sh -e\nx"), "/bin/sh");
        assert_eq!(interpreter(b"#!"), "");
    }
}
