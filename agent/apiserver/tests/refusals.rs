//! Every write of the node's identity refused, one after the other, and cut off there (docs/internals/testing.md, faults).

use std::fs;
use std::path::Path;

use agent_apiserver::Server;
use agent_apiserver::certificates::{Store, self_signed};
use agent_apiserver::kubeconfig::{self, OwnKubeconfig};
use agent_faults::{FileOperation, survives};
use agent_types::certificates::CertKind;
use agent_types::time::Wall;

const NOON: Wall = Wall(1_795_262_400_000_000_000); // 2026-11-21 12:00:00 UTC
const LATER: Wall = Wall(NOON.0 + 1_000_000_000);

#[test]
fn a_whole_pair_is_current_at_every_moment() {
    let [old, new] = ["old", "new"].map(|host| self_signed(host, NOON).unwrap());
    let text = |pair: &(String, _)| pair.0.clone();
    let update = |root: &Path, (certificate, key): &(String, _), now| {
        let store = Store::open(root, CertKind::Client)?;
        let key: &zeroize::Zeroizing<String> = key;
        store.update(certificate.as_bytes(), key, now)
    };
    let calls = survives(&FileOperation {
        prepare: &|root| drop(update(root, &old, NOON).unwrap()),
        act: &|root| update(root, &new, LATER).map(drop),
        look: &|root| {
            // As a reader who knows nothing of the store sees it, and as the next agent does.
            let read = fs::read_to_string(root.join("kubelet-client-current.pem")).unwrap();
            let current = Store::open(root, CertKind::Client).unwrap().current().unwrap().unwrap();
            for seen in [read.as_bytes(), &current] {
                let seen = String::from_utf8_lossy(seen);
                assert!(seen.starts_with(&text(&old)) || seen.starts_with(&text(&new)), "{seen}");
                assert!(seen.trim_end().ends_with("-----END PRIVATE KEY-----"), "half a pair");
            }
        },
    });
    assert!(calls.iter().any(|call| call.to_string() == "rename of kubelet-client-current.pem"), "{calls:?}");
}

#[test]
fn a_kubeconfig_is_the_old_one_or_the_new_one() {
    let config = |server: &str| OwnKubeconfig {
        server: Server::parse(server).unwrap(),
        ca_pem: b"ca".to_vec(),
        client_pem: "/pki/kubelet-client-current.pem".into(),
    };
    let [old, new] = ["https://old:6443", "https://new:6443"].map(config);
    let path = |root: &Path| root.join("etc/kubelet.conf");
    survives(&FileOperation {
        prepare: &|root| kubeconfig::write(&path(root), &old).unwrap(),
        act: &|root| kubeconfig::write(&path(root), &new),
        look: &|root| {
            let text = fs::read_to_string(path(root)).unwrap();
            assert!([old.render(), new.render()].contains(&text), "{text}");
        },
    });
}
