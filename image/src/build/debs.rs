//! Fetches the packages that the base suite has too old, with a private apt configuration made from the host's.
//!
//! The lock's version is taken if the archive still has it, and its digest must agree; otherwise the newest version
//! that is new enough, with a warning. The result remembers what it took.

use super::{Builder, mkosi};
use crate::arch::Arch;
use crate::format::digest;
use crate::host::run;
use crate::lock::Deb;
use crate::plan::BuildStep;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sees to the packages and notes the facts `debs` and `deb.<name>`.
pub(super) fn fetch(builder: &mut Builder) -> Result<String> {
    let result = builder.result(BuildStep::Debs)?;
    let record = result.join("debs.json");
    let mut note = "kept".to_owned();
    if !record.is_file() || builder.options.update_lock {
        let partial = builder.dirs.work().join("debs");
        super::remove_tree(&partial)?;
        fs::create_dir_all(partial.join("image"))?;
        let used = fetch_all(builder, &partial)?;
        fs::write(partial.join("debs.json"), serde_json::to_string_pretty(&used)?)?;
        if builder.dirs.arch != Arch::HOST {
            let used = fetch_emulator(builder, &partial)?;
            fs::write(partial.join(HOST_DEBS), serde_json::to_string_pretty(&used)?)?;
        }
        super::remove_tree(&result)?;
        fs::rename(&partial, &result)?;
        note = used
            .iter()
            .map(|d| d.version.split(['+', '-']).next().unwrap_or(""))
            .collect::<Vec<_>>()
            .join(" ");
    }
    let used: Vec<Deb> = serde_json::from_str(&fs::read_to_string(&record)?).context("reading debs.json")?;
    for deb in &used {
        builder.facts.set(&format!("deb.{}", deb.name), deb.sha256.clone());
        let locked = builder.lock.debs.iter().find(|l| l.name == deb.name);
        if let Some(locked) = locked.filter(|l| l.version != deb.version) {
            let (name, was, now) = (&deb.name, &locked.version, &deb.version);
            builder
                .warnings
                .push(format!("{name} {was} is locked but no longer in the archive; {now} is used"));
        }
    }
    // mkosi builds the tree but is not in it.
    let image: Vec<&Deb> = used.iter().filter(|d| d.name != "mkosi").collect();
    builder.facts.set("debs", digest::bytes(format!("{image:?}").as_bytes()));
    if builder.options.update_lock {
        builder.lock.debs = used;
        if builder.dirs.arch != Arch::HOST {
            let text = fs::read_to_string(result.join(HOST_DEBS)).context("reading host-debs.json")?;
            builder.lock.host_debs = serde_json::from_str(&text).context("parsing host-debs.json")?;
        }
    }
    Ok(note)
}

fn fetch_all(builder: &Builder, out: &Path) -> Result<Vec<Deb>> {
    let arch = builder.dirs.arch;
    let from = Archive {
        arch,
        apt: &builder.dirs.apt(arch),
        lock: arch.facts().lock,
        update_lock: builder.options.update_lock,
        log: &builder.log,
    };
    let used = fetch_files(&from, &builder.lock.debs, &out.join("image"))?;
    if used.iter().any(|d| d.name == "mkosi") {
        let path = find_deb(&out.join("image"), "mkosi")?;
        unpack(&path, &out.join("mkosi"), &builder.log)?;
        fs::remove_file(&path)?;
    }
    Ok(used)
}

/// What was fetched for the build machine.
const HOST_DEBS: &str = "host-debs.json";
/// Below the step's result: the unpacked packages for the build machine.
const HOST: &str = "host";

/// Fetches what runs the image's programs on this machine, unpacked below `out`.
fn fetch_emulator(builder: &Builder, out: &Path) -> Result<Vec<Deb>> {
    let lock = builder.dirs.arch.facts().lock;
    let debs = &builder.lock.host_debs;
    if debs.is_empty() {
        bail!("{lock} names no emulator (host_debs) for the programs of {}", builder.dirs.arch.name());
    }
    let from = Archive {
        arch: Arch::HOST,
        apt: &builder.dirs.apt(Arch::HOST),
        lock,
        update_lock: builder.options.update_lock,
        log: &builder.log,
    };
    let files = out.join("host-files");
    fs::create_dir_all(&files)?;
    let used = fetch_files(&from, debs, &files)?;
    for deb in &used {
        unpack(&find_deb(&files, &deb.name)?, &out.join(HOST), &builder.log)?;
    }
    fs::remove_dir_all(&files).context("removing the unpacked packages")?;
    Ok(used)
}

/// The program that runs programs of the image's architecture on this machine; none is needed for its own.
pub(super) fn emulator(builder: &Builder) -> Result<Option<PathBuf>> {
    let arch = builder.dirs.arch;
    if arch == Arch::HOST {
        return Ok(None);
    }
    Ok(Some(builder.result(BuildStep::Debs)?.join(HOST).join(arch.facts().user_emulator)))
}

/// Where packages come from, and by which rules.
pub struct Archive<'a> {
    /// Architecture of the packages.
    pub arch: Arch,
    /// Directory of the private apt configuration and lists.
    pub apt: &'a Path,
    /// The lock file, for messages.
    pub lock: &'a str,
    /// Take the newest packages instead of the lock's.
    pub update_lock: bool,
    /// What the programs say.
    pub log: &'a Path,
}

/// Fetches `debs` into the directory `out`, which must be there; answers what was taken.
///
/// # Errors
/// No mirror is known, nothing new enough is in the archive, or a digest is not the locked one.
pub fn fetch_files(from: &Archive<'_>, debs: &[Deb], out: &Path) -> Result<Vec<Deb>> {
    let config = private_apt(from.arch, from.apt)?;
    let apt = |program: &str| {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &config).current_dir(out);
        command
    };
    run::logged(apt("apt-get").arg("update"), "reading the package lists", from.log)?;
    let names = debs.iter().map(|locked| &locked.name);
    let policy = run::output(apt("apt-cache").arg("madison").args(names), "apt-cache madison")?;
    let mut available = versions(&String::from_utf8_lossy(&policy));
    let chosen = debs
        .iter()
        .map(|locked| {
            let available = available.remove(&locked.name).unwrap_or_default();
            choose(locked, &available, from.update_lock, &newer_or_equal)
        })
        .collect::<Result<Vec<String>>>()?;
    let wanted: Vec<String> =
        debs.iter().zip(&chosen).map(|(d, version)| format!("{}={version}", d.name)).collect();
    // All of them at once: apt reads its lists again at each start, which takes seconds.
    run::logged(
        apt("apt-get").arg("download").args(&wanted),
        &format!("fetching {}", wanted.join(" ")),
        from.log,
    )?;
    let mut used = Vec::new();
    for (locked, version) in debs.iter().zip(chosen) {
        let sha256 = digest::file(&find_deb(out, &locked.name)?)?;
        if version == locked.version && sha256 != locked.sha256 && !from.update_lock {
            bail!(
                "{}={version}: the archive's file has SHA-256 {sha256}, {} says {}; if the change is known to be \
                 right, take it over (`orlop-image build --update-lock` for the image)",
                locked.name,
                from.lock,
                locked.sha256
            );
        }
        used.push(Deb { version, sha256, ..locked.clone() });
    }
    Ok(used)
}

/// Unpacks a package's files into `to`.
///
/// # Errors
/// dpkg-deb's.
pub fn unpack(deb: &Path, to: &Path, log: &Path) -> Result<()> {
    let mut command = Command::new("dpkg-deb");
    command.arg("-x").arg(deb).arg(to);
    run::logged(&mut command, &format!("unpacking {}", deb.display()), log)
}

// Which version to take (pure but for `not_older`, which is dpkg's comparison).
fn choose(
    locked: &Deb,
    available: &[String],
    newest: bool,
    not_older: &dyn Fn(&str, &str) -> Result<bool>,
) -> Result<String> {
    if !newest && available.contains(&locked.version) {
        return Ok(locked.version.clone());
    }
    let mut best: Option<&String> = None;
    for version in available {
        if not_older(version, &locked.at_least)? && best.map_or(Ok(true), |b| not_older(version, b))? {
            best = Some(version);
        }
    }
    best.cloned().with_context(|| {
        format!(
            "{}: the archive has neither {} nor anything from {} on (it has: {})",
            locked.name,
            locked.version,
            locked.at_least,
            if available.is_empty() { "none".to_owned() } else { available.join(", ") }
        )
    })
}

fn newer_or_equal(a: &str, b: &str) -> Result<bool> {
    let status =
        Command::new("dpkg").args(["--compare-versions", a, "ge", b]).status().context("running dpkg")?;
    Ok(status.success())
}

// `name | version | source` lines of several packages, as versions by name.
fn versions(madison: &str) -> BTreeMap<String, Vec<String>> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in madison.lines() {
        let mut cells = line.split('|').map(str::trim);
        let (Some(name), Some(version)) = (cells.next(), cells.next()) else { continue };
        let of_name = out.entry(name.to_owned()).or_default();
        if of_name.last().is_none_or(|last| last != version) {
            of_name.push(version.to_owned());
        }
    }
    out
}

/// The file of package `name` in `dir`.
///
/// # Errors
/// There is none.
pub fn find_deb(dir: &Path, name: &str) -> Result<PathBuf> {
    let prefix = format!("{name}_");
    let mut found = fs::read_dir(dir)?.filter_map(|e| e.ok().map(|e| e.path()));
    found
        .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
        .with_context(|| format!("apt-get download left no {prefix}*.deb"))
}

fn private_apt(arch: Arch, dir: &Path) -> Result<PathBuf> {
    for sub in ["lists/partial", "cache/archives/partial", "etc"] {
        fs::create_dir_all(dir.join(sub))?;
    }
    fs::write(dir.join("status"), "")?;
    fs::write(dir.join("etc/orlop.sources"), mkosi::all_sources()?)?;
    let (d, arch) = (dir.display(), arch.name());
    // The host's own settings (proxies) are read first; these come on top.
    let text = format!(
        "Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts \"{d}/etc\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::State::lists \"{d}/lists\";\nDir::State::status \"{d}/status\";\nDir::Cache \"{d}/cache\";\n\
         APT::Architecture \"{arch}\";\nAPT::Architectures {{ \"{arch}\"; }};\nAPT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled \"false\";\n"
    );
    let path = dir.join("apt.conf");
    fs::write(&path, text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked() -> Deb {
        Deb { name: "x".into(), at_least: "2.1".into(), version: "2.1.9-5".into(), sha256: String::new() }
    }

    fn pick(available: &[&str], newest: bool) -> Result<String> {
        let available: Vec<String> = available.iter().map(|s| (*s).to_owned()).collect();
        // Good enough for these version strings.
        choose(&locked(), &available, newest, &|a, b| Ok(a >= b))
    }

    #[test]
    fn the_locked_version_wins_while_it_exists() {
        assert_eq!(pick(&["2.2.0-1", "2.1.9-5", "1.7-1"], false).expect("found"), "2.1.9-5");
        assert_eq!(pick(&["2.2.0-1", "2.1.9-5", "1.7-1"], true).expect("found"), "2.2.0-1");
    }

    #[test]
    fn otherwise_the_newest_that_is_new_enough_or_a_clear_error() {
        assert_eq!(pick(&["1.7-1", "2.2.0-1", "2.1.0-1"], false).expect("found"), "2.2.0-1");
        let error = pick(&["1.7-1"], false).expect_err("too old").to_string();
        assert!(error.contains("2.1") && error.contains("1.7-1"), "{error}");
    }

    #[test]
    fn madison_lines_give_versions_once() {
        let text = " x | 2-1 | http://m forky/main amd64 Packages\n x | 2-1 | http://m sid/main\n x | 1-1 | http://m\n\
                    lib-y | 1:3-1 | http://m\nno line\n";
        let versions = versions(text);
        assert_eq!(versions["x"], ["2-1", "1-1"]);
        assert_eq!(versions["lib-y"], ["1:3-1"]);
        assert_eq!(versions.len(), 2);
    }
}
