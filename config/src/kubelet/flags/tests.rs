//! Flags: every one leads to a field, forms of text, precedence over file and drop-ins.

use super::args::{self, check_labels, is_self_label, parse};
use super::*;
use crate::Duration;
use crate::kubelet::{DropIn, load_kubelet_config_with};
use proptest::prelude::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn overlay(flags: &[&str]) -> Overlay {
    parse(flags).unwrap_or_else(|e| panic!("{e}")).overlay
}

fn applied(flags: &[&str]) -> KubeletConfiguration {
    overlay(flags).apply(&KubeletConfiguration::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_flag_leads_to_a_field_of_its_form() {
    for flag in FLAGS {
        let kind = kind_at(flag.path).unwrap_or_else(|| panic!("--{}: no field {}", flag.name, flag.path));
        let fits = match flag.form {
            Form::Text => matches!(
                kind,
                Kind::Str | Kind::Enum(_) | Kind::Duration | Kind::DurationOrNanos | Kind::Quantity
            ),
            Form::Bool => matches!(kind, Kind::Bool),
            Form::Int | Form::Bare => matches!(kind, Kind::Int(..)),
            Form::List => matches!(kind, Kind::List(Kind::Str | Kind::Enum(_))),
            Form::Pairs | Form::Thresholds => matches!(kind, Kind::Map(Kind::Str)),
            Form::Gates => matches!(kind, Kind::Map(Kind::Bool)),
            Form::Headers => matches!(kind, Kind::Map(Kind::List(Kind::Str))),
            Form::Taints | Form::NumaMemory | Form::VModule => matches!(kind, Kind::List(Kind::Object(_))),
        };
        assert!(fits, "--{} is {:?}, {} is {kind:?}", flag.name, flag.form, flag.path);
    }
    let mut names: Vec<&str> = FLAGS.iter().map(|f| f.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FLAGS.len(), "a name twice");
}

#[test]
fn forms_of_text() {
    let c = applied(&[
        "--max_pods=5",
        "--sync-frequency",
        "7s",
        "--anonymous-auth",
        "--register-node=f",
        "--cluster-dns=10.0.0.1, 10.0.0.2",
        "--cluster-dns=10.0.0.3",
        "--system-reserved=cpu=100m,memory=1Gi",
        "--system-reserved=memory=2Gi",
        "--eviction-hard=memory.available<5%,nodefs.available<1Gi",
        "--eviction-minimum-reclaim=nodefs.available=1Gi",
        "--manifest-url-header=A:1,B:2,A:3",
        "--register-with-taints=a/b=c:NoExecute,d:NoSchedule",
        "--reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=3Gi",
        "-v",
        "4",
        "--vmodule=a*=5",
        "--enforce-node-allocatable=",
        "--cgroups-per-qos=false",
    ]);
    assert_eq!((c.max_pods, c.sync_frequency), (5, Duration::from_secs(7)));
    assert!(c.authentication.anonymous.enabled && !c.register_node);
    assert_eq!(c.cluster_dns, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert_eq!((c.system_reserved["cpu"].as_str(), c.system_reserved["memory"].as_str()), ("100m", "2Gi"));
    assert_eq!(c.eviction_hard.len(), 2, "flags replace maps");
    assert_eq!(c.static_pod_url_header["A"].0, ["1", "3"]);
    assert_eq!(c.register_with_taints.len(), 2);
    assert_eq!((c.register_with_taints[1].key.as_str(), c.register_with_taints[1].value.as_str()), ("d", ""));
    assert_eq!(c.reserved_memory[0].limits["hugepages-1Gi"].value(), 2 << 30);
    assert_eq!(c.reserved_memory[1].numa_node, 1);
    assert_eq!((c.logging.verbosity, c.logging.vmodule[0].verbosity), (4, 5));
    assert_eq!(c.enforce_node_allocatable, []);
}

#[test]
fn flags_win_and_gates_merge() {
    let base = format!("{HEAD}maxPods: 10\nfeatureGates: {{MemoryQoS: true, EventedPLEG: true}}");
    let drop_in = DropIn { path: "/d/1.conf".into(), text: format!("{HEAD}maxPods: 20\nport: 1") };
    let flags = overlay(&["--max-pods=30", "--feature-gates=MemoryQoS=false,ContainerStopSignals=true"]);
    let c = load_kubelet_config_with(Some((&base, "/k")), &[drop_in], &flags).expect("valid");
    assert_eq!((c.max_pods, c.port), (30, 1));
    let gates: Vec<(&str, bool)> = c.feature_gates.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(gates, [("ContainerStopSignals", true), ("EventedPLEG", true), ("MemoryQoS", false)]);
}

#[test]
fn what_flags_do_not_name_stays_as_it_is() {
    let text = format!(
        "{HEAD}featureGates: {{KubeletEnsureSecretPulledImages: false, KubeletCrashLoopBackOffMax: false}}"
    );
    let flags = overlay(&["--max-pods=3"]);
    let c = load_kubelet_config_with(Some((&text, "/k")), &[], &flags)
        .expect("fields without default stay unset");
    assert_eq!(c.image_pull_credentials_verification_policy, None);
    assert_eq!(c.crash_loop_back_off.max_container_restart_period, None);
}

#[test]
fn without_a_file_the_older_defaults_hold() {
    let c = load_kubelet_config_with(None, &[], &Overlay::default()).expect("valid");
    assert!(c.authentication.anonymous.enabled && !c.authentication.webhook.enabled);
    assert_eq!(c.authorization.mode, crate::kubelet::enums::AuthorizationMode::AlwaysAllow);
    assert_eq!(c.read_only_port, 10255);
}

#[test]
fn a_zero_in_a_flag_is_a_zero() {
    let error = overlay(&["--port=0"]).apply(&KubeletConfiguration::default()).expect_err("zero port");
    assert_eq!(
        error.to_string(),
        "invalid configuration: --port: port: 0 must be an integer between 1 and 65535"
    );
}

#[test]
fn mistakes() {
    let table: &[(&[&str], &str)] = &[
        (&["run"], "command line: unknown command run: only flags are allowed"),
        (&["-x"], "command line: unknown command -x: only flags are allowed"),
        (&["--"], "command line: unknown command --: only flags are allowed"),
        (&["--max-pod=1"], "--max-pod: is an unknown flag"),
        (&["--max-pods"], "--max-pods: needs a value"),
        (&["--max-pods=many"], "--max-pods: maxPods: \"many\" must be an integer"),
        (&["--register-node=yes"], "--register-node: registerNode: \"yes\" must be true or false"),
        (
            &["--eviction-hard=a=b"],
            "--eviction-hard: evictionHard: \"a=b\" must be signal<amount pairs with commas between",
        ),
        (
            &["--feature-gates=A=x"],
            "--feature-gates: featureGates: \"A=x\" must be Name=true or Name=false pairs with commas between",
        ),
        (
            &["--manifest-url-header=secret"],
            "--manifest-url-header: staticPodURLHeader: must be name:value pairs with commas between",
        ),
        (
            &["--reserved-memory=x:memory=1"],
            "--reserved-memory: reservedMemory: \"x:memory=1\" must be node:type=amount,type=amount items with ; between",
        ),
        (
            &["--node-ip=a"],
            "--node-ip: \"a\" must be an IP address, or an IPv4 and an IPv6 one with a comma between",
        ),
        (&["--cloud-provider=aws"], "--cloud-provider: \"aws\" must be external or empty"),
        (&["--exit-on-lock-contention"], "--exit-on-lock-contention: needs --lock-file"),
        (&["--node-labels=a"], "--node-labels: \"a\" must be key=value pairs with commas between"),
    ];
    for (flags, want) in table {
        let error = parse(flags).expect_err(want).to_string();
        assert_eq!(error, format!("invalid configuration: {want}"));
    }
}

#[test]
fn options() {
    let parsed = parse(&[
        "--config=/k.yaml",
        "--config-dir",
        "/d",
        "--hostname_override=n",
        "--node-ip=10.0.0.1,fd00::1",
        "--node-labels=a=b,c=",
        "--root-dir=/r",
        "--lock-file=/l",
        "--exit-on-lock-contention",
        "--cloud-provider=external",
        "--containerd=/x",
        "--log-cadvisor-usage",
        "--kubeconfig=",
        "-h",
    ])
    .expect("valid");
    let o = parsed.options;
    assert_eq!((o.config.as_deref(), o.config_dir.as_deref()), (Some("/k.yaml"), Some("/d")));
    assert_eq!((o.hostname_override.as_deref(), o.root_dir.as_str()), (Some("n"), "/r"));
    assert_eq!(o.node_labels.len(), 2);
    assert!(o.exit_on_lock_contention && o.help && !o.version);
    assert_eq!(o.ignored, ["containerd", "log-cadvisor-usage"]);
    assert_eq!(o.kubeconfig, None);
    assert_eq!(o.cert_dir, "/var/lib/kubelet/pki");
    let empty: [&str; 0] = [];
    assert_eq!(parse(&empty).expect("no flags"), args::Arguments::default());
}

#[test]
fn every_option_is_taken() {
    for (name, bare) in args::OPTIONS {
        let value = match name {
            "node-ip" => "192.0.2.1",
            "cloud-provider" => "external",
            "node-labels" => "a=b",
            _ if bare => "true",
            _ => "/x",
        };
        let lock = (name == "exit-on-lock-contention").then(|| "--lock-file=/l".to_owned());
        let flags: Vec<String> = lock.into_iter().chain([format!("--{name}={value}")]).collect();
        let parsed = parse(&flags).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(parsed.options.ignored, Vec::<String>::new());
        assert_ne!(parsed.options, args::Options::default(), "--{name} changes nothing");
    }
}

#[test]
fn labels_a_node_may_set_on_itself() {
    for good in [
        "a",
        "example.com/a",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/a",
        "x.node.kubernetes.io/a",
        "kubelet.kubernetes.io/a",
        "notkubernetes.io/a",
        "kubernetes.io/arch",
    ] {
        assert!(is_self_label(good), "{good}");
    }
    for bad in
        ["kubernetes.io/x", "k8s.io/x", "node-role.kubernetes.io/x", "a.k8s.io/x", "xnode.kubernetes.io/a"]
    {
        assert!(!is_self_label(bad), "{bad}");
    }
    let labels =
        [("k8s.io/b", "x"), ("a b", "x"), ("c", "y z")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let said: Vec<String> = check_labels(&labels).iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 3);
    assert!(
        said[0]
            .contains("unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [k8s.io/b]")
    );
}

proptest! {
    #[test]
    fn any_text_of_any_flag_is_answered(i in 0..FLAGS.len(), text in "[a-c0-9=<>:;,.%-]{0,20}") {
        let flag = &FLAGS[i];
        if let Ok(parsed) = parse(&[format!("--{}={text}", flag.name)]) {
            let _ = parsed.overlay.apply(&KubeletConfiguration::default());
        }
    }

    #[test]
    fn any_arguments_are_answered(args in proptest::collection::vec("-{0,2}[a-z=0-9-]{0,12}", 0..5)) {
        let _ = parse(&args);
    }
}
