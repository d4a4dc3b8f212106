//! When the keys of NodeConfig count, and what refuses their values.
//!
//! In: nothing. Out: a table by top-level key; docs/reference/node-config.md is made from it and from the schema. Invariant: it has each
//! key of the document (a test compares).

/// A note about a top-level key and those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyNote {
    /// The key.
    pub key: &'static str,
    /// When a change of it counts.
    pub acts: &'static str,
    /// What is a mistake, in addition to unknown keys, other types and values out of range.
    pub refused: &'static str,
}

/// All of them, in the order of their names.
#[rustfmt::skip]
pub const KEY_NOTES: &[KeyNote] = &[
    KeyNote {
        key: "api",
        acts: "from the next boot on; a key that is removed is refused from then on",
        refused: "a name that is not 1 to 63 letters, digits and `-_.@`, a key that is not `ed25519:` and base64, names or keys that are there twice, more than 64 entries",
    },
    KeyNote {
        key: "console",
        acts: "at the start of the agent",
        refused: "nothing else",
    },
    KeyNote {
        key: "files",
        acts: "at each boot, before anything starts; a file goes with its entry",
        refused: "paths outside of the places for files, paths that are there twice, a path below another file, `content` and `data` together or neither",
    },
    KeyNote {
        key: "install",
        acts: "at the first boot of a stick alone",
        refused: "a disk that is not named by its name below /dev/disk/by-id, its serial number or its WWN; any other mistake of the document",
    },
    KeyNote {
        key: "join",
        acts: "at the start of the agent, and until the node has a certificate of its own",
        refused: "a server that is no https:// URL, a token of another form, CA data without a certificate, hashes of another form, `kubeconfig` and `bootstrapKubeconfig` together, one of them next to `server`, `token`, `caData` or `caCertHashes`",
    },
    KeyNote {
        key: "kernel",
        acts: "at each boot, after the image's own settings; one that the kernel refuses is a problem of `bringup.settings`",
        refused: "names that are no kernel settings or modules, values of more than one line",
    },
    KeyNote {
        key: "kubelet",
        acts: "at the start of the agent",
        refused: "what KubeletConfiguration refuses; the values are checked together with those of the appliance",
    },
    KeyNote {
        key: "labels",
        acts: "when the node registers its Node object",
        refused: "keys and values that are no labels, and labels of `kubernetes.io` and `k8s.io` that a node may not set on itself",
    },
    KeyNote {
        key: "network",
        acts: "at each boot",
        refused: "addresses, networks and names of another form, members and parents that are not there or have two places, two routes to one network with one metric, a gateway without an address of its family",
    },
    KeyNote {
        key: "node",
        acts: "at each boot; another name is another Node object",
        refused: "a name that is no DNS name, more than one address of a family",
    },
    KeyNote {
        key: "platform",
        acts: "when the node registers its Node object",
        refused: "nothing else",
    },
    KeyNote {
        key: "proxy",
        acts: "at each boot, for containerd and credential providers",
        refused: "URLs that are not http:// or https://, or have blanks or quotes; entries of `noProxy` that are no host, domain, address or network",
    },
    KeyNote {
        key: "registries",
        acts: "at each boot",
        refused: "hosts and URLs of another form, CA data without a certificate or with a private key, options of endpoints without endpoints, mistakes of CredentialProviderConfig",
    },
    KeyNote {
        key: "runtime",
        acts: "at the start of the agent, for pods that start from then on",
        refused: "nothing else",
    },
    KeyNote {
        key: "staticPods",
        acts: "at each boot; a pod goes with its entry",
        refused: "an entry without name and manifest, a manifest that is no Pod, names that are there twice",
    },
    KeyNote {
        key: "storage",
        acts: "at the first boot, when the state partition is made",
        refused: "nothing else",
    },
    KeyNote {
        key: "swap",
        acts: "at each boot; the file goes with the key",
        refused: "a size below 1Mi that is not 0",
    },
    KeyNote {
        key: "taints",
        acts: "when the node registers its Node object",
        refused: "keys, values and effects that are no taints, and `kubelet.registerWithTaints` next to it",
    },
    KeyNote {
        key: "time",
        acts: "at each boot",
        refused: "servers that are no host name and no IP address",
    },
    KeyNote {
        key: "trust",
        acts: "at each boot",
        refused: "an entry that is not PEM certificates in base64, or has blocks of another kind",
    },
    KeyNote {
        key: "update",
        acts: "at the start of the agent, which tries versions, and of the updater, which fetches them",
        refused: "a source that is neither an https:// URL of a directory nor oci:// with a repository, a channel or a group of another form, a version that is no X.Y.Z, a window whose `start` is no time of the day, more than 50 windows, a `soak` that is not shorter than the trial's `deadline`",
    },
];

#[cfg(test)]
mod tests {
    use super::super::NodeConfig;
    use super::KEY_NOTES;
    use crate::field::{Describe, Kind};

    #[test]
    fn each_key_of_the_document_has_a_note() {
        let Kind::Object(fields) = NodeConfig::KIND else { panic!("NodeConfig is an object") };
        let mut keys: Vec<&str> = fields
            .iter()
            .map(|field| field.name)
            .filter(|key| !matches!(*key, "apiVersion" | "kind"))
            .collect();
        keys.sort_unstable();
        let notes: Vec<&str> = KEY_NOTES.iter().map(|note| note.key).collect();
        assert_eq!(notes, keys);
    }

    #[test]
    fn notes_say_both_without_a_full_stop() {
        for note in KEY_NOTES {
            for text in [note.acts, note.refused] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{note:?}");
            }
        }
    }
}
