//! What `portmap` answers for a pod without host ports: nothing is to be done; and what `bridge` asks of the reference plugin
//! `portmap` for a pod with some, if it stands for both in the list of plugins. Pure.
//!
//! In: the configuration. Out: what to print, or the configuration for the real plugin.

use serde_json::{Value, json};

/// The answer to ADD, DEL and CHECK, or `None` if the configuration is the plugin's own to read: it has port mappings,
/// lacks the result of the plugin before it, or is not what the specification of CNI (1.0, section 3) calls one.
#[must_use]
pub fn answer(command: &str, config: &[u8]) -> Option<String> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let none = mappings(&config).is_none();
    let result = config.get("prevResult").filter(|r| r.get("cniVersion").is_some());
    match command {
        "ADD" => result.filter(|_| none).map(Value::to_string),
        "CHECK" => result.filter(|_| none).map(|_| String::new()),
        "DEL" => (none && config.get("name").is_some()).then(String::new),
        _ => None,
    }
}

/// The configuration of the reference plugin `portmap`, for a configuration of `bridge` that stands for both: its object `portmap`
/// has the fields of portmap's own entry. `result` is what the bridge came to; without it the configuration's own counts. `None`
/// if the configuration has no such object, or the pod has no host ports.
#[must_use]
pub fn question(config: &[u8], result: Option<&Value>) -> Option<Value> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let mut question = config.get("portmap")?.as_object()?.clone();
    let mappings = mappings(&config)?;
    question.insert("type".into(), "portmap".into());
    question.insert("runtimeConfig".into(), json!({"portMappings": mappings}));
    for field in ["cniVersion", "name"] {
        question.insert(field.into(), config.get(field)?.clone());
    }
    if let Some(result) = result.or_else(|| config.get("prevResult")) {
        question.insert("prevResult".into(), result.clone());
    }
    Some(question.into())
}

/// The pod's host ports; `None` if it has none.
fn mappings(config: &Value) -> Option<&Value> {
    let mappings = config.get("runtimeConfig")?.get("portMappings")?;
    let none = mappings.is_null() || mappings.as_array().is_some_and(Vec::is_empty);
    (!none).then_some(mappings)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_without_mappings_and_with_a_result() {
        let result = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}]}"#;
        let with = |rest: &str| {
            format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"portmap","prevResult":{result}{rest}}}"#)
        };
        for rest in [
            "",
            r#","runtimeConfig":{}"#,
            r#","runtimeConfig":{"portMappings":null}"#,
            r#","runtimeConfig":{"portMappings":[]}"#,
        ] {
            assert_eq!(answer("ADD", with(rest).as_bytes()).as_deref(), Some(result), "{rest}");
            for command in ["DEL", "CHECK"] {
                assert_eq!(answer(command, with(rest).as_bytes()).as_deref(), Some(""), "{command} {rest}");
            }
            for command in ["GC", "STATUS", "VERSION", ""] {
                assert_eq!(answer(command, with(rest).as_bytes()), None, "{command} {rest}");
            }
        }
        let mapped = with(
            r#","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]}"#,
        );
        let odd = with(r#","runtimeConfig":{"portMappings":"80"}"#);
        for own in [mapped.as_str(), &odd, "{}", "", r#"{"prevResult":{}}"#, "[1]"] {
            for command in ["ADD", "DEL", "CHECK"] {
                assert_eq!(answer(command, own.as_bytes()), None, "{command} {own}");
            }
        }
        let unknown = r#"{"cniVersion":"1.0.0","name":"n","type":"portmap"}"#;
        assert_eq!(answer("DEL", unknown.as_bytes()).as_deref(), Some(""), "a result is not needed for DEL");
    }

    #[test]
    fn a_bridge_that_stands_for_both_asks_for_host_ports_alone() {
        let with = |rest: &str| format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"bridge"{rest}}}"#);
        let (ours, ports) = (r#","portmap":{"backend":"nftables"}"#, r#","runtimeConfig":{"portMappings":"#);
        let mapped = format!(r#"{ours}{ports}[{{"hostPort":80}}]}}"#);
        let result = json!({"cniVersion": "1.0.0", "ips": []});
        let want = json!({
            "cniVersion": "1.0.0", "name": "n", "type": "portmap", "backend": "nftables",
            "runtimeConfig": {"portMappings": [{"hostPort": 80}]},
        });
        assert_eq!(question(with(&mapped).as_bytes(), None), Some(want.clone()));
        let mut after = want;
        after["prevResult"] = result.clone();
        assert_eq!(question(with(&mapped).as_bytes(), Some(&result)), Some(after.clone()));
        // Of CHECK.
        let checked = with(&format!(r#"{mapped},"prevResult":{result}"#));
        assert_eq!(question(checked.as_bytes(), None), Some(after));
        for rest in [
            ours.to_owned(),
            format!("{ours}{ports}[]}}"),
            format!("{ours}{ports}null}}"),
            format!(r#"{ports}[{{"hostPort":80}}]}}"#),
            format!(r#","portmap":true{ports}[{{"hostPort":80}}]}}"#),
        ] {
            assert_eq!(question(with(&rest).as_bytes(), Some(&result)), None, "{rest}");
        }
        assert_eq!(question(b"{", None), None);
    }

    proptest! {
        #[test]
        fn no_input_panics(config in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = answer("ADD", &config);
            let _ = question(&config, None);
        }
    }
}
