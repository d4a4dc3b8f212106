//! Real programs: shell scripts that answer, count, complain and hang.

use std::time::Duration;

use agent_core::pod_manager::ManagerEvent;
use agent_linux::clock::LinuxClock;
use agent_types::api::ObjectName;
use agent_types::objects::{Fetched, ObjectRef};
use agent_types::time::Wall;
use agent_volumes::bound::Bound;
use agent_volumes::claim::{ClaimError, ClaimRef};
use agent_volumes::csi::source::SecretRef;
use agent_volumes::pod_certificate::{CertificateSource, Certified};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::node::node_events::NodeEvents;
use crate::pods::desired_pods::DesiredPods;
use crate::pods::pod_values::{Claimed, FoundAccount, FoundSecret, HeldToken, no_cluster};
use crate::tasks::mailbox::Sender;
use crate::testing::VirtualClock;
use crate::volumes::csi::Csi;

const IMAGE: &str = "r.example/team/app";
const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// Accounts with the annotation `role`, whose value is their own name; a token contains its account's name.
struct Accounts;

impl Sources for Accounts {
    fn fetch(&self, object: ObjectRef) -> BoxFuture<'_, Fetched> {
        panic!("{object} is fetched");
    }

    fn token(&self, token: TokenRef) -> BoxFuture<'_, Result<HeldToken, String>> {
        assert_eq!((token.audience.as_str(), token.account_uid.as_str()), ("registry", "uid"));
        let text = format!("{}/{}/{}", token.namespace, token.account, token.pod);
        Box::pin(std::future::ready(Ok(HeldToken { text, renew: Wall(i64::MAX), ends: Wall(i64::MAX) })))
    }

    fn certificate(&self, of: &CertificateSource) -> Result<Certified, String> {
        panic!("{of} is asked for");
    }

    fn account(&self, _: String, name: String) -> BoxFuture<'_, Result<FoundAccount, String>> {
        let annotations = [("role".to_owned(), name.clone())].into();
        Box::pin(std::future::ready(match name.as_str() {
            "gone" => Err("serviceaccounts \"gone\" not found".to_owned()),
            "plain" => Ok(FoundAccount { uid: "uid".to_owned(), annotations: BTreeMap::new() }),
            _ => Ok(FoundAccount { uid: "uid".to_owned(), annotations }),
        }))
    }

    fn claim(&self, claim: ClaimRef) -> BoxFuture<'_, Result<Bound, ClaimError>> {
        Box::pin(std::future::ready(Err(claim.unprocessed("none here"))))
    }

    fn csi_driver(&self, _: String) -> BoxFuture<'_, Result<Option<CSIDriver>, String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn attachment(&self, _: String) -> BoxFuture<'_, Result<VolumeAttachment, String>> {
        no_cluster()
    }

    fn claimed(&self, _: ObjectName) -> BoxFuture<'_, Result<Claimed, String>> {
        no_cluster()
    }

    fn patch_claim(&self, _: ObjectName, _: Value) -> BoxFuture<'_, Result<PersistentVolumeClaim, String>> {
        no_cluster()
    }

    fn secret(&self, _: SecretRef) -> BoxFuture<'_, Result<FoundSecret, String>> {
        no_cluster()
    }

    fn csi(&self) -> Csi {
        Csi::new(&Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new()))
    }

    fn reread_after(&self) -> Option<Duration> {
        None
    }

    fn follow(
        self: Arc<Self>,
        _: watch::Receiver<DesiredPods>,
        _: Sender<ManagerEvent>,
        _: NodeEvents,
    ) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct World {
    dir: TempDir,
    plugins: Plugins,
    metrics: Metrics,
}

impl World {
    /// A plugin `p` that runs `script`; `more` goes into its configuration.
    fn new(script: &str, more: &str) -> World {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("p");
        std::fs::write(
            &program,
            format!("#!/bin/sh\ncd '{}'\necho x >> calls\n{script}\n", dir.path().display()),
        )
        .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = dir.path().join("c.yaml");
        std::fs::write(&config, config_text("p", more)).unwrap();
        let providers = load(&config, dir.path(), true).unwrap();
        let tasks = Tasks::new(Arc::new(LinuxClock), CancellationToken::new());
        let metrics = Metrics::new(Arc::new(LinuxClock));
        let plugins = Plugins::new(dir.path(), providers, Arc::new(Accounts), metrics.clone(), tasks);
        World { dir, plugins, metrics }
    }

    async fn ask(&self, pod: &str, account: &str) -> Vec<Credential> {
        self.plugins.credentials(IMAGE, &pod_key(pod), account).await
    }

    fn calls(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default().lines().count()
    }

    fn heard(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("heard")).unwrap_or_default()
    }
}

fn pod_key(name: &str) -> PodKey {
    PodKey { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}").as_str().into() }
}

fn config_text(name: &str, more: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: {name}\n  \
         matchImages: [r.example]\n  defaultCacheDuration: 1h\n  apiVersion: {V1}\n  args: [a, b]\n  \
         env: [{{name: OF, value: config}}]\n{more}"
    )
}

/// A script that answers, with the password it is given.
fn answers(password: &str) -> String {
    format!(
        "cat > heard\nprintf '{{\"apiVersion\":\"{V1}\",\"kind\":\"CredentialProviderResponse\",\"cacheKeyType\":\"Image\",\
         \"auth\":{{\"r.example\":{{\"username\":\"%s\",\"password\":\"%s\"}}}}}}' \"$OF-$1$2\" {password}"
    )
}

const TOKEN: &str = "  tokenAttributes: {serviceAccountTokenAudience: registry, requireServiceAccount: true, \
                     requiredServiceAccountAnnotationKeys: [role], cacheType: ";

#[tokio::test]
async fn an_answer_is_kept_and_a_question_asked_once_at_a_time() {
    let w = World::new(&answers("geheim"), "");
    let (first, second) = tokio::join!(w.ask("a", "sa"), w.ask("b", ""));
    let expected =
        Credential { username: "config-ab".to_owned(), password: "geheim".to_owned(), source: None };
    assert_eq!(first, std::slice::from_ref(&expected));
    assert_eq!((second, w.calls()), (first, 1), "both have the one answer");
    assert_eq!(
        w.heard(),
        format!("{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"{V1}\",\"image\":\"{IMAGE}\"}}\n")
    );
    assert_eq!(w.ask("c", "").await, [expected]);
    assert_eq!(w.calls(), 1, "it is kept");
    assert!(w.plugins.credentials("other.example/x", &pod_key("a"), "").await.is_empty());
    assert_eq!(w.calls(), 1, "the plugin has nothing to do with other images");
}

#[tokio::test]
async fn tokens_are_given_and_answers_are_their_accounts() {
    for (kind, calls_after_another_pod) in [("ServiceAccount", 1), ("Token", 2)] {
        let w = World::new(&answers("p"), &format!("{TOKEN}{kind}}}"));
        let found = w.ask("a", "sa").await;
        let account =
            AccountName { uid: "uid".to_owned(), namespace: "ns".to_owned(), name: "sa".to_owned() };
        assert_eq!(found[0].source, Some(Source::Account(account)));
        let told = "\"serviceAccountToken\":\"ns/sa/a\",\"serviceAccountAnnotations\":{\"role\":\"sa\"}";
        assert!(w.heard().contains(told), "{}", w.heard());
        w.ask("b", "sa").await;
        assert_eq!(w.calls(), calls_after_another_pod, "{kind}");
        w.ask("b", "other").await;
        assert_eq!(w.calls(), calls_after_another_pod + 1, "{kind}");
        for account in ["", "plain", "gone"] {
            assert!(w.ask("b", account).await.is_empty(), "{account}");
        }
        assert_eq!(w.calls(), calls_after_another_pod + 1, "{kind}: nobody to ask for");
    }
    // The token itself may only be the password where answers are kept for a token.
    for (kind, used) in [("ServiceAccount", false), ("Token", true)] {
        let w = World::new(&answers("ns/sa/a"), &format!("{TOKEN}{kind}}}"));
        assert_eq!(!w.ask("a", "sa").await.is_empty(), used, "{kind}");
    }
}

#[tokio::test]
async fn what_fails_gives_nothing_and_is_asked_again() {
    // Whether the program's failure counts as an error in upstream's metric.
    for (script, errors) in [
        ("echo geheim; exit 3", Some(2)),
        ("echo geheim", None),
        ("echo why >&2; kill -9 $$", Some(2)),
        ("echo '{}'", None),
    ] {
        let w = World::new(script, "");
        assert!(w.ask("a", "").await.is_empty(), "{script}");
        assert!(w.ask("a", "").await.is_empty(), "{script}");
        assert_eq!(w.calls(), 2, "{script}");
        let text = w.metrics.text_without_pods();
        let of = |series: &str| {
            let start = format!("kubelet_credential_provider_plugin_{series}{{plugin_name=\"p\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u32>().ok())
        };
        assert_eq!((of("duration_count"), of("errors_total")), (Some(2), errors), "{script}");
    }
    let tasks = Tasks::new(Arc::new(LinuxClock), CancellationToken::new());
    let shell = |script: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(command, vec![b'x'; 1 << 20], &tasks)
    };
    assert_eq!(shell("echo why >&2; exit 3").await, Err("exit status: 3: why".to_owned()));
    assert_eq!(shell("printf yes").await, Ok(b"yes".to_vec()), "it need not read the question");
    assert_eq!(shell("cat").await.map(|b| b.len()), Ok(1 << 20));
    let long = shell("head -c 5000000 /dev/zero").await.unwrap_err();
    assert!(long.contains("longer than 4194304 bytes"), "{long}");
    let chatty = shell("head -c 5000000 /dev/zero >&2; exit 1").await.unwrap_err();
    assert!(chatty.starts_with("exit status: 1") && chatty.len() < 5000, "{}", chatty.len());
    let absent = run(Command::new("/no/such/program"), Vec::new(), &tasks).await.unwrap_err();
    assert!(absent.contains("No such file"), "{absent}");
}

/// Time stands still unless all tasks wait: the minute passes as soon as the program hangs.
#[tokio::test(start_paused = true)]
async fn a_program_that_hangs_is_killed() {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let began = tasks.now().mono;
    let mut command = Command::new("/bin/sleep");
    command.arg("100000");
    // The function returns only when the program is gone.
    assert_eq!(run(command, Vec::new(), &tasks).await, Err("context deadline exceeded".to_owned()));
    assert!(tasks.now().mono.since(began) >= TIME_MAX);
}

#[test]
fn configuration_and_programs_are_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, conf) = (dir.path().join("bin"), dir.path().join("conf"));
    let said = || format!("{:#}", load(&conf, &bin, true).unwrap_err());
    assert!(said().contains("unable to access path"), "{}", said());
    std::fs::create_dir_all(&conf).unwrap();
    std::fs::write(conf.join("readme.txt"), "none").unwrap();
    assert!(said().contains("no configuration files found in directory"), "{}", said());
    std::fs::write(conf.join("b.yml"), config_text("b", "")).unwrap();
    std::fs::write(conf.join("a.yaml"), config_text("a", "")).unwrap();
    // None of the programs exists; the agent starts nevertheless.
    let names: Vec<String> = load(&conf, &bin, true).unwrap().into_iter().map(|p| p.name).collect();
    assert_eq!(names, ["a", "b"], "in the order of the files");
    std::fs::write(conf.join("c.json"), config_text("a", "")).unwrap();
    assert!(said().contains("providers[2].name: Duplicate value"), "{}", said());
}
