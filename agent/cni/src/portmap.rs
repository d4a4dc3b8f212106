//! What `portmap` answers for a pod without host ports: nothing is to be done. Pure.
//!
//! In: the configuration. Out: what to print, or that the real plugin is to be asked.

use serde_json::Value;

/// The answer to ADD, DEL and CHECK, or `None` if the configuration is the plugin's own to read: it has port mappings,
/// lacks the result of the plugin before it, or is not what the specification of CNI (1.0, section 3) calls one.
#[must_use]
pub fn answer(command: &str, config: &[u8]) -> Option<String> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let none = match config.get("runtimeConfig").and_then(|c| c.get("portMappings")) {
        None | Some(Value::Null) => true,
        Some(Value::Array(mappings)) => mappings.is_empty(),
        Some(_) => false,
    };
    let result = config.get("prevResult").filter(|r| r.get("cniVersion").is_some());
    match command {
        "ADD" => result.filter(|_| none).map(Value::to_string),
        "CHECK" => result.filter(|_| none).map(|_| String::new()),
        "DEL" => (none && config.get("name").is_some()).then(String::new),
        _ => None,
    }
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

    proptest! {
        #[test]
        fn no_input_panics(config in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = answer("ADD", &config);
        }
    }
}
