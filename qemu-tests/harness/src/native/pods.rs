//! Static pod manifests for cases. Pure.

use std::fmt::Write;

use super::config::NODE_NAME;
use super::images;

/// A static pod with one container from the test image.
#[derive(Clone, Debug)]
pub struct Pod {
    name: String,
    script: String,
    grace_s: Option<u32>,
    restart: &'static str,
}

impl Pod {
    /// A pod that prints `hello from <name>` and runs until TERM, at which it ends at once.
    #[must_use]
    pub fn staying(name: &str) -> Pod {
        // The shell must be awake to act on the signal: `wait` is interrupted by it, `sleep` is not.
        Pod::script(
            name,
            &format!("trap 'exit 0' TERM; echo hello from {name}; while :; do sleep 3600 & wait; done"),
        )
    }

    /// A pod that runs a shell script.
    #[must_use]
    pub fn script(name: &str, script: &str) -> Pod {
        Pod { name: name.into(), script: script.into(), grace_s: None, restart: "Always" }
    }

    /// With `terminationGracePeriodSeconds`.
    #[must_use]
    pub fn grace(mut self, seconds: u32) -> Pod {
        self.grace_s = Some(seconds);
        self
    }

    /// With another restart policy than `Always`.
    #[must_use]
    pub fn restart(mut self, policy: &'static str) -> Pod {
        self.restart = policy;
        self
    }

    /// File in the static pod directory.
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.yaml", self.name)
    }

    /// Name of the pod as the runtime knows it: static pods carry their node's name.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}-{NODE_NAME}", self.name)
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> String {
        let mut text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n  labels:\n    app: {}\nspec:\n  restartPolicy: {}\n",
            self.name, self.name, self.restart
        );
        if let Some(grace) = self.grace_s {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  terminationGracePeriodSeconds: {grace}");
        }
        let command = serde_json::json!(["sh", "-c", self.script]);
        let _ = writeln!(
            text,
            "  containers:\n  - name: c\n    image: {}\n    imagePullPolicy: IfNotPresent\n    command: {command}",
            images::busybox()
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_holds_what_was_asked_for() {
        let pod = Pod::script("a", "exit \"1\"").grace(7).restart("Never");
        assert_eq!(pod.file(), "a.yaml");
        assert_eq!(pod.full_name(), "a-native");
        let text = pod.manifest();
        for part in [
            "terminationGracePeriodSeconds: 7",
            "restartPolicy: Never",
            r#"command: ["sh","-c","exit \"1\""]"#,
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
