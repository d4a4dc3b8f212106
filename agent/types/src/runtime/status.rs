//! The runtime's own version, status and handlers (CRI `Version` and `Status`).

/// `Version` of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// For example `containerd`.
    pub name: String,
    /// For example `2.1.4`.
    pub version: String,
    /// For example `v1`.
    pub api_version: String,
}

/// `Status` of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Condition `RuntimeReady`; if false, the text `RuntimeReady=false reason:… message:…`.
    pub runtime_ready: Result<(), String>,
    /// Condition `NetworkReady`; if false, the text `NetworkReady=false reason:… message:…`.
    pub network_ready: Result<(), String>,
    /// Runtime handlers, in the runtime's order; empty if the runtime does not report them.
    pub handlers: Vec<RuntimeHandler>,
    /// Features of the runtime; `None` if it does not report them.
    pub features: Option<RuntimeFeatures>,
}

impl RuntimeStatus {
    /// A ready runtime without further facts.
    #[must_use]
    pub fn ready() -> RuntimeStatus {
        RuntimeStatus { runtime_ready: Ok(()), network_ready: Ok(()), handlers: Vec::new(), features: None }
    }
}

/// One runtime handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Empty for the default handler.
    pub name: String,
    /// The handler supports recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
    /// The handler runs pods in user namespaces.
    pub user_namespaces: bool,
}

/// Checks that `handler` supports sandboxes with user namespaces; empty for the default handler (KEP-127).
///
/// # Errors
/// The handler does not support them; the text is upstream's.
pub fn user_namespaces(handlers: &[RuntimeHandler], handler: &str) -> Result<(), String> {
    let mut why = "can't set `spec.hostUsers: false`, runtime does not support user namespaces".to_owned();
    if !handler.is_empty() {
        why = format!(
            "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
        );
    }
    match handlers.iter().find(|h| h.name == handler) {
        Some(found) if found.user_namespaces => Ok(()),
        // An old runtime reports no handlers.
        None if !handlers.is_empty() => Err(format!("{why}: the handler {handler:?} is not known")),
        _ => Err(why),
    }
}

/// Features of the runtime as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// `supplementalGroupsPolicy` is honoured.
    pub supplemental_groups_policy: bool,
    /// User namespaces go together with the host's network.
    pub user_namespaces_host_network: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_namespaces_are_the_handlers() {
        let of = |name: &str, user_namespaces| RuntimeHandler {
            name: name.to_owned(),
            recursive_read_only_mounts: false,
            user_namespaces,
        };
        let handlers = [of("", true), of("crun", true), of("kata", false)];
        assert_eq!(user_namespaces(&handlers, ""), Ok(()));
        assert_eq!(user_namespaces(&handlers, "crun"), Ok(()));
        for (handlers, handler, words) in [
            (&handlers[..], "kata", "RuntimeClass handler \"kata\" does not support user namespaces"),
            (&handlers[..], "other", "does not support user namespaces: the handler \"other\" is not known"),
            (&[][..], "", "runtime does not support user namespaces"),
            (&[of("", false)][..], "", "runtime does not support user namespaces"),
        ] {
            let said = user_namespaces(handlers, handler).unwrap_err();
            assert!(
                said.starts_with("can't set `spec.hostUsers: false`, ") && said.ends_with(words),
                "{said}"
            );
        }
    }
}
