//! The ways from this machine into the booted one: forwarded ports, and the management API with a key that the node knows.
//!
//! In: the options, the NodeConfig of the machine. Out: ports for QEMU, the document with an administrator, the lines to type.
//! Invariants: a document that names administrators stays as it is; the private key is in its file alone.

use crate::qemu::PortForward;
use crate::update::SigningKey;
use anyhow::{Context, Result, bail};
use orlop_config::admin_key;
use orlop_config::node::{NodeConfig, Source, load};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

/// Port of the management API on the node, and on this machine if no option says otherwise.
const API_PORT: u16 = 10270;
/// Name of the administrator that `--api` adds.
const ADMIN: &str = "cargo-boot";

/// What a person reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuestWays {
    /// For QEMU.
    pub(super) forwards: Vec<PortForward>,
    api: Option<(u16, ApiKey)>,
}

/// Whose key the node takes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ApiKey {
    /// The one of this file.
    Made(PathBuf),
    /// Those of the administrators that the document names.
    OfDocument(Vec<String>),
}

impl GuestWays {
    /// Checks the options, and gives the node an administrator if `--api` asks for one and the document has none.
    ///
    /// # Errors
    /// Options that contradict each other, a port that is in use, a document that takes no administrator, or no key.
    pub(super) fn open(
        asked: &[PortForward],
        api: bool,
        document: String,
        key_file: &Path,
    ) -> Result<(GuestWays, String)> {
        let (forwards, api_port) = ports(asked, api)?;
        forwards.iter().try_for_each(is_free)?;
        let Some(port) = api_port else { return Ok((GuestWays { forwards, api: None }, document)) };
        let names = administrators(&document).unwrap_or_default();
        if !names.is_empty() {
            return Ok((GuestWays { forwards, api: Some((port, ApiKey::OfDocument(names))) }, document));
        }
        let document = admit(&document, &public_key(key_file)?)?;
        Ok((GuestWays { forwards, api: Some((port, ApiKey::Made(key_file.to_owned()))) }, document))
    }

    /// The lines for a person; none without a way.
    pub(super) fn lines(&self) -> String {
        let mut lines = String::new();
        let api_port = self.api.as_ref().map(|(port, _)| *port);
        for PortForward { host, guest } in self.forwards.iter().filter(|f| Some(f.host) != api_port) {
            let _ = writeln!(lines, "127.0.0.1:{host} leads to port {guest} of the node.");
        }
        let Some((port, key)) = &self.api else { return lines };
        let (file, whose) = match key {
            ApiKey::Made(file) => (file.display().to_string(), String::new()),
            ApiKey::OfDocument(names) => {
                let names = names.join(", ");
                (
                    "FILE".to_owned(),
                    format!("FILE is the private key of an administrator of your document ({names}).\n"),
                )
            }
        };
        let _ = write!(
            lines,
            "The management API, from another terminal:\n  orlopctl --tcp 127.0.0.1:{port} --key {file} status\n{whose}\
             The first call asks nothing, and prints the key of this node. Pass it in each later call: --node-key SHA256:…\n"
        );
        lines
    }
}

/// The ports to forward, and the one of this machine that leads to the management API.
fn ports(asked: &[PortForward], api: bool) -> Result<(Vec<PortForward>, Option<u16>)> {
    let mut forwards: Vec<PortForward> = Vec::new();
    for one in asked {
        if let Some(other) = forwards.iter().find(|other| other.host == one.host) {
            bail!(
                "--forward {other} and --forward {one} take the same port of this machine: give one of them another"
            );
        }
        forwards.push(*one);
    }
    if !api {
        return Ok((forwards, None));
    }
    if let Some(own) = asked.iter().find(|forward| forward.guest == API_PORT) {
        return Ok((forwards, Some(own.host)));
    }
    if let Some(other) = asked.iter().find(|forward| forward.host == API_PORT) {
        bail!(
            "--api and --forward {other} take the same port of this machine: add --forward PORT:{API_PORT}, and --api uses PORT"
        );
    }
    forwards.push(PortForward { host: API_PORT, guest: API_PORT });
    Ok((forwards, Some(API_PORT)))
}

/// A port in use is better found here than after the build, in QEMU's words.
fn is_free(forward: &PortForward) -> Result<()> {
    let PortForward { host, guest } = forward;
    TcpListener::bind((Ipv4Addr::LOCALHOST, *host)).map(drop).with_context(|| {
        format!("port {host} of this machine cannot lead to port {guest} of the node; --forward PORT:{guest} takes another one")
    })
}

/// The document's administrators; `None`: a node would refuse the document.
fn administrators(document: &str) -> Option<Vec<String>> {
    let source = Source { name: "fw-cfg".into(), origin: "--config".into(), text: document.to_owned() };
    let effective = load(&[source], &[]);
    let names = |config: NodeConfig| config.api.admins.into_iter().map(|admin| admin.name).collect();
    (!effective.accepted.is_empty()).then_some(effective.config).map(names)
}

/// The document with an administrator who has this key.
fn admit(document: &str, key: &str) -> Result<String> {
    let entry = format!("api:\n  admins:\n  - {{name: \"{ADMIN}\", key: \"{key}\"}}\n");
    let end = if document.ends_with('\n') { "" } else { "\n" };
    let admitted = format!("{document}{end}{entry}");
    if administrators(&admitted).is_none_or(|names| names != [ADMIN]) {
        bail!(
            "--api cannot add a key to this document: it has `api` already, or is in no block form. Add the key yourself:\n{entry}"
        );
    }
    Ok(admitted)
}

/// The public half of the key in the file, which is made if it is not there.
fn public_key(file: &Path) -> Result<String> {
    let key = if file.exists() { SigningKey::read(file)? } else { SigningKey::create(file)? };
    let public = admin_key::of_bytes(key.public());
    Ok(admin_key::render(&public.with_context(|| format!("{} has no Ed25519 key", file.display()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
    const HEAD: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";

    fn forward(text: &str) -> PortForward {
        text.parse().expect("two ports")
    }

    fn refused(asked: &[&str], api: bool) -> String {
        let asked: Vec<PortForward> = asked.iter().map(|text| forward(text)).collect();
        ports(&asked, api).expect_err("refused").to_string()
    }

    #[test]
    fn the_api_has_its_port_or_the_one_that_leads_there() {
        assert_eq!(ports(&[], false).expect("none"), (vec![], None));
        let web = forward("8080:80");
        assert_eq!(ports(&[web], false).expect("one"), (vec![web], None));
        assert_eq!(ports(&[web], true).expect("two"), (vec![web, forward("10270:10270")], Some(10270)));
        let other = forward("20270:10270");
        assert_eq!(ports(&[other], true).expect("one"), (vec![other], Some(20270)));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused_by_name() {
        let twice = refused(&["8080:80", "8080:81"], false);
        assert!(twice.contains("--forward 8080:80 and --forward 8080:81"), "{twice}");
        let taken = refused(&["10270:80"], true);
        assert!(taken.contains("--api and --forward 10270:80") && taken.contains("PORT:10270"), "{taken}");
    }

    #[test]
    fn a_port_in_use_is_found_before_the_build() {
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let host = other.local_addr().expect("its address").port();
        let said = is_free(&PortForward { host, guest: 80 }).expect_err("in use").to_string();
        assert!(said.contains(&host.to_string()) && said.contains("--forward PORT:80"), "{said}");
    }

    #[test]
    fn a_document_gets_an_administrator_if_it_has_none() {
        for document in [HEAD.to_owned(), format!("{HEAD}node: {{name: a}}")] {
            let admitted = admit(&document, KEY).expect("admitted");
            assert_eq!(administrators(&admitted), Some(vec![ADMIN.to_owned()]), "{admitted}");
        }
        for document in [
            format!("{HEAD}api: {{vsock: {{trustHost: true}}}}\n"),
            "{apiVersion: orlop/v1alpha1, kind: NodeConfig}\n".to_owned(),
        ] {
            let said = admit(&document, KEY).expect_err("refused").to_string();
            assert!(said.contains("--api") && said.contains(KEY), "{said}");
        }
    }

    #[test]
    fn the_sample_gets_an_administrator() {
        // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
        let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
        let path = Path::new(&package).join("rootfs/common/usr/share/orlop/manifests/hello.yaml");
        let pod = std::fs::read_to_string(path).expect("the sample pod");
        let admitted = admit(&crate::boot::screen::node_config(&pod), KEY).expect("admitted");
        assert_eq!(administrators(&admitted), Some(vec![ADMIN.to_owned()]), "{admitted}");
    }

    #[test]
    fn the_key_is_made_once_and_the_line_names_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("admin.key");
        let public = public_key(&file).expect("made");
        assert_eq!(public_key(&file).expect("read"), public);
        assert!(admin_key::parse(&public).is_some(), "{public}");
        let ways = GuestWays {
            forwards: vec![forward("8080:80"), forward("20270:10270")],
            api: Some((20270, ApiKey::Made(file.clone()))),
        };
        let lines = ways.lines();
        let line = format!("\n  orlopctl --tcp 127.0.0.1:20270 --key {} status\n", file.display());
        assert!(lines.starts_with("127.0.0.1:8080 leads to port 80 of the node.\n"), "{lines}");
        assert!(lines.contains(&line) && !lines.contains("port 10270"), "{lines}");
        assert_eq!(GuestWays { forwards: vec![], api: None }.lines(), "");
    }

    #[test]
    fn a_document_with_administrators_keeps_them() {
        let document = format!("{HEAD}api: {{admins: [{{name: ops-1, key: \"{KEY}\"}}]}}\n");
        let names = administrators(&document).expect("accepted");
        assert_eq!(names, ["ops-1"]);
        let ways = GuestWays { forwards: vec![], api: Some((10270, ApiKey::OfDocument(names))) };
        let lines = ways.lines();
        assert!(lines.contains(" --key FILE status\n") && lines.contains("(ops-1)"), "{lines}");
    }
}
