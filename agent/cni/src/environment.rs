//! What the caller gives in addition to the configuration: the variables of CNI (specification 1.1, section 2). Pure.

use std::path::PathBuf;

use crate::failure::Failure;

/// Longest name of an interface, bytes.
const INTERFACE_BYTES_MAX: usize = 15;

/// The variables, checked for the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_NETNS`; empty if the container has none any more.
    pub namespace: String,
    /// `CNI_IFNAME`.
    pub interface: String,
    /// `CNI_ARGS`: name and value.
    pub args: Vec<(String, String)>,
    /// `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// `CNI_NETNS_OVERRIDE`: the namespace may be the plugin's own.
    pub own_namespace_too: bool,
}

impl Environment {
    /// Reads what the command needs through `get`.
    ///
    /// # Errors
    /// A variable that the command needs is missing or malformed.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Environment, Failure> {
        let of = |name| get(name).unwrap_or_default();
        let environment = Environment {
            command: of("CNI_COMMAND"),
            container: of("CNI_CONTAINERID"),
            namespace: of("CNI_NETNS"),
            interface: of("CNI_IFNAME"),
            args: args(&of("CNI_ARGS"))?,
            path: of("CNI_PATH").split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect(),
            own_namespace_too: ["1", "true", "TRUE", "True", "t", "T"]
                .contains(&of("CNI_NETNS_OVERRIDE").as_str()),
        };
        let of_a_container = matches!(environment.command.as_str(), "ADD" | "DEL" | "CHECK");
        if of_a_container && !is_identifier(&environment.container) {
            let why = format!("{:?} is no name of letters, digits, '_', '.' and '-'", environment.container);
            return Err(Failure::Environment { variable: "CNI_CONTAINERID", why });
        }
        if of_a_container && !is_interface(&environment.interface) {
            let why = format!("{:?} is no name of an interface", environment.interface);
            return Err(Failure::Environment { variable: "CNI_IFNAME", why });
        }
        if matches!(environment.command.as_str(), "ADD" | "CHECK") && environment.namespace.is_empty() {
            return Err(Failure::Environment { variable: "CNI_NETNS", why: "is missing".into() });
        }
        Ok(environment)
    }
}

/// Letters, digits, `_`, `.` and `-`, the first a letter or a digit: what names networks and containers.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(plain) && text.chars().all(|c| plain(c) || matches!(c, '_' | '.' | '-'))
}

fn is_interface(text: &str) -> bool {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    !text.is_empty()
        && text.len() <= INTERFACE_BYTES_MAX
        && text != "."
        && text != ".."
        && !text.contains(odd)
}

fn args(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let pairs = text.split(';').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => {
                Err(Failure::Environment { variable: "CNI_ARGS", why: format!("has {pair:?} without '='") })
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Environment, Failure> {
        Environment::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn what_a_command_needs_is_asked_for() {
        let all = [
            ("CNI_CONTAINERID", "a1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_ARGS", "IgnoreUnknown=1;IP=10.1.1.1"),
            ("CNI_PATH", "/a:/b"),
        ];
        let with = |command| [&all[..], &[("CNI_COMMAND", command)]].concat();
        let environment = read(&with("ADD")).expect("complete");
        assert_eq!(environment.args[1], ("IP".to_owned(), "10.1.1.1".to_owned()));
        assert_eq!(environment.path.len(), 2);
        for (command, variable, refused) in [
            ("ADD", "CNI_CONTAINERID", true),
            ("ADD", "CNI_IFNAME", true),
            ("ADD", "CNI_NETNS", true),
            ("CHECK", "CNI_NETNS", true),
            ("DEL", "CNI_NETNS", false),
            ("DEL", "CNI_CONTAINERID", true),
            ("GC", "CNI_CONTAINERID", false),
            ("STATUS", "CNI_IFNAME", false),
        ] {
            let less: Vec<_> = with(command).into_iter().filter(|(name, _)| *name != variable).collect();
            assert_eq!(read(&less).is_err(), refused, "{command} {variable}");
        }
    }

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for name in ["", "..", "a/b", "-a", "a b", "ä"] {
            assert!(!is_identifier(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a:1", "a b", "sixteen-letters-"] {
            assert!(!is_interface(name), "{name}");
        }
        assert!(is_identifier("orlop-1_2.x") && is_interface("eth0.5"));
        assert!(read(&[("CNI_COMMAND", "GC"), ("CNI_ARGS", "x")]).is_err());
    }
}
