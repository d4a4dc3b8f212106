//! The command line: what is understood, and what is not.

use clap::CommandFactory as _;

use super::*;

fn parsed(words: &[&str]) -> Cli {
    Cli::try_parse_from(["orlopctl"].iter().chain(words)).unwrap()
}

fn request(words: &[&str]) -> ReadRequest {
    let Verb::Logs(args) = parsed(words).verb else { panic!("{words:?}") };
    args.request(Timestamp::from_second(100_000).unwrap()).unwrap()
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// The words of a command, with quotes as a shell has them.
fn words(command: &str) -> Vec<String> {
    let parts = command.split(['\'', '"']).enumerate();
    let words = parts.flat_map(|(n, part)| match n % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// Commands of a page: lines of code fences, and code spans.
fn commands(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            found.push(line);
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    // A command with an ellipsis is a part of one.
    found.retain(|line| line.starts_with("orlopctl ") && !line.contains('…'));
    found
}

#[test]
fn commands_of_the_pages_are_understood() {
    // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let mut understood = 0;
    for folder in ["howto", "runbooks", "start"] {
        for page in std::fs::read_dir(format!("{package}/../../docs/{folder}")).unwrap() {
            let path = page.unwrap().path();
            for command in commands(&std::fs::read_to_string(&path).unwrap()) {
                let parsed = Cli::try_parse_from(words(command));
                assert!(parsed.is_ok(), "{}: {command}: {:?}", path.display(), parsed.err());
                understood += 1;
            }
        }
    }
    assert!(understood > 40, "only {understood} commands");
}

#[test]
fn ways_to_the_node() {
    for (words, target) in [
        (&["status"][..], Target::Unix(PathBuf::from("/run/orlop/api.sock"))),
        (&["--socket", "/x", "status"][..], Target::Unix(PathBuf::from("/x"))),
        (&["status", "--vsock", "3"][..], Target::Vsock(3)),
        (&["--vsock-socket", "/v", "kinds"][..], Target::VsockSocket(PathBuf::from("/v"))),
        (&["--serial", "/s", "kinds"][..], Target::Serial(PathBuf::from("/s"))),
    ] {
        assert_eq!(parsed(words).target().unwrap(), target, "{words:?}");
    }
}

#[test]
fn the_network_needs_a_key_and_has_a_port() {
    for (host, expected) in [
        ("edge-7", "edge-7:10270"),
        ("edge-7:443", "edge-7:443"),
        ("192.0.2.1", "192.0.2.1:10270"),
        ("2001:db8::1", "[2001:db8::1]:10270"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[2001:db8::1]", "[2001:db8::1]:10270"),
    ] {
        assert_eq!(address(host), expected);
    }
    let words = ["--tcp", "edge-7", "--key", "k", "--node-key", "SHA256:x", "status"];
    let expected = Target::Tcp {
        address: "edge-7:10270".to_owned(),
        credential: NodeCredential::Key(PathBuf::from("k")),
        pin: "SHA256:x".to_owned(),
    };
    assert_eq!(parsed(&words).target().unwrap(), expected);
    assert_eq!(parsed(&["--tcp", "edge-7", "status"]).target().unwrap_err().exit_code(), 2);
}

#[test]
fn several_nodes_have_ways_of_their_own() {
    let several = |words: &[&str]| parsed(words).several().map_err(|error| error.exit_code());
    let by_key = ["--tcp", "a,b:443", "--key", "k", "--node-key", "SHA256:x,SHA256:y", "status"];
    let known = |name: &str, address: &str, pin: &str| {
        let credential = NodeCredential::Key(PathBuf::from("k"));
        let target = Target::Tcp { address: address.to_owned(), credential, pin: pin.to_owned() };
        NodeWay::Known(name.to_owned(), target)
    };
    let expected = [known("a", "a:10270", "SHA256:x"), known("b:443", "b:443", "SHA256:y")];
    assert_eq!(several(&by_key).unwrap(), expected);
    assert_eq!(several(&["--tcp", "a,b", "--key", "k", "--node-key", "SHA256:x", "status"]), Err(2));
    let of_cluster = several(&["--node", "n1,n2", "--key", "k", "status"]).unwrap();
    let names: Vec<&str> = of_cluster
        .iter()
        .filter_map(|way| match way {
            NodeWay::Cluster(node) => Some(node.name.as_str()),
            NodeWay::Known(..) => None,
        })
        .collect();
    assert_eq!(names, ["n1", "n2"]);
    assert_eq!(several(&["--node", "n1,n2", "--tcp", "a", "--key", "k", "status"]), Err(2));
    assert_eq!(several(&["--node", "n1", "--tcp", "a,b", "--key", "k", "status"]), Err(2));
    assert_eq!(several(&["--tcp", "a,b", "--key", "k", "--context", "c", "status"]), Err(2));
    let two_keys = ["--tcp", "a", "--key", "k", "--node-key", "SHA256:x,SHA256:y", "status"];
    assert!(parsed(&two_keys).is_several());
    assert_eq!(several(&two_keys), Err(2));
    assert!(!parsed(&["--node", "n1", "status"]).is_several() && parsed(&by_key).is_several());
}

#[test]
fn a_token_is_read_from_a_file_and_shown_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "secret.token\n").unwrap();
    let words = ["--tcp", "edge-7", "--token-file", file.to_str().unwrap(), "status"];
    let target = parsed(&words).target().unwrap();
    let token = BearerToken::new("secret.token").unwrap();
    let expected = Target::Tcp {
        address: "edge-7:10270".to_owned(),
        credential: NodeCredential::Token(token),
        pin: String::new(),
    };
    assert_eq!(target, expected);
    assert!(!format!("{target:?}").contains("secret"), "{target:?}");
    for odd in ["", "a b", "a\u{7f}"] {
        std::fs::write(&file, odd).unwrap();
        assert_eq!(parsed(&words).target().unwrap_err().exit_code(), 2, "{odd:?}");
    }
}

#[test]
fn a_node_of_a_cluster_is_found_by_kubectl() {
    let words = ["status", "--node", "n1", "--service-account", "ops/reader", "--context", "c"];
    let found = parsed(&words).cluster_node().unwrap().unwrap();
    let expected = ClusterNode {
        name: "n1".to_owned(),
        service_account: Some("ops/reader".to_owned()),
        context: Some("c".to_owned()),
        ..ClusterNode::default()
    };
    assert_eq!(found, expected);
    assert_eq!(parsed(&["status"]).cluster_node().unwrap(), None);
    let plugin = Cli { is_plugin: true, ..parsed(&["status"]) };
    assert_eq!(plugin.cluster_node().unwrap_err().exit_code(), 2);
    let by_key = Cli { is_plugin: true, ..parsed(&["status", "--vsock", "3"]) };
    assert_eq!(by_key.cluster_node().unwrap(), None);
    assert_eq!(parsed(&["status", "--context", "c"]).cluster_node().unwrap_err().exit_code(), 2);
    assert!(is_plugin(OsStr::new("/usr/local/bin/kubectl-orlop")) && !is_plugin(OsStr::new("orlopctl")));
}

#[test]
fn forms_of_the_output() {
    for (words, form) in [
        (&["status"][..], OutputForm::Table),
        (&["status", "-o", "json"], OutputForm::Json),
        (&["-o", "yaml", "status"], OutputForm::Yaml),
        (&["status", "-oname"], OutputForm::Name),
    ] {
        assert_eq!(parsed(words).output, form, "{words:?}");
    }
    let OutputForm::JsonPath(path) = parsed(&["status", "-o", "jsonpath={.kind}"]).output else {
        panic!("no template")
    };
    assert_eq!(path.apply(&serde_json::json!({"kind": "List"})), "List");
}

#[test]
fn kinds_have_commas_and_names_follow() {
    let Verb::Get(args) = parsed(&["get", "services,disks", "a.service", "b"]).verb else { panic!("no get") };
    assert_eq!(args.kinds(), ["services", "disks"]);
    assert_eq!(args.names, ["a.service", "b"]);
}

#[test]
fn requests_for_logs() {
    let found = request(&["logs", "kubelet", "-f", "--since", "10m", "--lines", "5", "--grep", "x"]);
    assert_eq!((found.units.len(), found.follow, found.since_seconds), (1, true, 99_400));
    assert_eq!((found.lines, found.grep.as_str(), found.boot), (5, "x", 0));
    assert_eq!(request(&["logs", "--boot", "-1"]).boot, -1);
    assert_eq!(request(&["logs", "--since", "2d"]).since_seconds, 0);
    assert_eq!(request(&["logs", "--since", "1970-01-02T00:00:00Z"]).since_seconds, 86400);
    assert_eq!(request(&["logs", "--file", "boot.json"]).file, "boot.json");
}

#[test]
fn command_lines_without_sense_are_refused() {
    for words in [
        &["status", "--vsock", "3", "--socket", "/x"][..],
        &["status", "--serial", "/s", "--tcp", "n"],
        &["get"],
        &["logs", "--file", "a", "-f"],
        &["logs", "--list", "-k"],
        &["logs", "--lines", "0"],
        &["logs", "-c", "app"],
        &["logs", "--previous"],
        &["logs", "kubelet", "--pod", "a/b"],
        &["logs", "--pod", "a/b", "--previous", "-f"],
        &["logs", "--pod", "a/b", "--list"],
        &["dashboard", "--web", "-n", "1"],
        &["dashboard", "--listen", "127.0.0.1:80"],
        &["dashboard", "--web", "--listen", "192.0.2.1:80"],
        &["status", "--timeout", "0"],
        &["status", "-o", "xml"],
        &["status", "-o", "jsonpath={.items"],
        &["capture", "eth0"],
        &["capture", "eth0", "-", "--seconds", "0"],
        &["capture", "eth0", "-", "--port", "65536"],
        &["config", "check"],
        &["config", "diff", "a.yaml", "--remove"],
        &["config", "apply", "a.yaml", "--confirm", "5m", "--no-confirm"],
        &["config", "confirm", "x"],
        &["restart"],
        &["reset"],
        &["reset", "all"],
        &["wait"],
        &["reboot", "--in", "-1"],
        &["reboot", "--in", "86401"],
        &["shutdown", "--for", "0"],
        &[],
    ] {
        assert!(Cli::try_parse_from(["orlopctl"].iter().chain(words)).is_err(), "{words:?}");
    }
    for text in ["", "m", "-5m", "5", "5w", "x5m", "99999999999999999d", "é"] {
        let error = since(text, Timestamp::from_second(5).unwrap()).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{text}");
    }
}
