//! What the CNI plugin `portmap` answers to ADD for a pod without host ports: the result of the plugin before it.

use serde_json::Value;

/// The result to print, or `None` if the configuration on standard input is the plugin's own to read: it has port
/// mappings, no previous result, or is not what the specification of CNI (1.0, section 3) calls a configuration.
#[must_use]
pub fn previous_result(config: &[u8]) -> Option<String> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let none = match config.get("runtimeConfig").and_then(|c| c.get("portMappings")) {
        None | Some(Value::Null) => true,
        Some(Value::Array(mappings)) => mappings.is_empty(),
        Some(_) => false,
    };
    let result = config.get("prevResult").filter(|r| none && r.get("cniVersion").is_some())?;
    Some(result.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_without_mappings_and_with_a_result() {
        let result = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}]}"#;
        let with =
            |rest: &str| format!(r#"{{"cniVersion":"1.0.0","type":"portmap","prevResult":{result}{rest}}}"#);
        for rest in [
            "",
            r#","runtimeConfig":{}"#,
            r#","runtimeConfig":{"portMappings":null}"#,
            r#","runtimeConfig":{"portMappings":[]}"#,
        ] {
            assert_eq!(previous_result(with(rest).as_bytes()).as_deref(), Some(result), "{rest}");
        }
        let mapped = with(
            r#","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]}"#,
        );
        let odd = with(r#","runtimeConfig":{"portMappings":"80"}"#);
        for own in [mapped.as_str(), &odd, "{}", "", r#"{"prevResult":{}}"#, "[1]"] {
            assert_eq!(previous_result(own.as_bytes()), None, "{own}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(config in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = previous_result(&config);
        }
    }
}
