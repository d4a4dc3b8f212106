//! Parts of a configuration by which a node finds its cluster through a kubeconfig that `join` names: files, and the authorities of the
//! machine.
//!
//! In: two effective configurations. Out: whether a change of such a part may cut the way to the node. Invariant: what is not known counts
//! as a way: a kubeconfig that no document brings may name any file.

use super::effective::Effective;
use super::node_file::{NodeFile, place_of};

/// Start of the fields by which a kubeconfig names authorities. Without one the authorities of the machine count.
const AUTHORITY: &str = "certificate-authority";

/// A kubeconfig that `join` names.
struct NamedKubeconfig {
    /// Where it is, in one spelling.
    place: String,
    /// What a document puts there; `None`: no document does.
    text: Option<String>,
}

/// Whether a kubeconfig that `join` names differs, or a file that such a kubeconfig names.
pub(super) fn cluster_files_differ(before: &Effective, after: &Effective) -> bool {
    let differs = |file: &NodeFile| found(before, &file.path) != found(after, &file.path);
    [before, after].into_iter().any(|effective| {
        let kubeconfigs = kubeconfigs(effective);
        effective.config.files.iter().any(|file| leads(&kubeconfigs, file) && differs(file))
    })
}

/// Whether the authorities of the machine vouch for the API server.
pub(super) fn machine_vouches(before: &Effective, after: &Effective) -> bool {
    let vouches = |kubeconfig: &NamedKubeconfig| {
        kubeconfig.text.as_deref().is_none_or(|text| !text.contains(AUTHORITY))
    };
    [before, after].into_iter().any(|effective| kubeconfigs(effective).iter().any(vouches))
}

fn kubeconfigs(effective: &Effective) -> Vec<NamedKubeconfig> {
    let join = effective.config.join.iter();
    let paths = join.flat_map(|join| [&join.kubeconfig, &join.bootstrap_kubeconfig]).flatten();
    let named = |path: &String| {
        let placed = found(effective, path).and_then(NodeFile::placed);
        let text = placed.map(|file| String::from_utf8_lossy(&file.content).into_owned());
        NamedKubeconfig { place: place(path), text }
    };
    paths.map(named).collect()
}

/// A path in one spelling: `/etc/kubernetes` is a link.
fn place(path: &str) -> String {
    place_of(path).unwrap_or_else(|| path.strip_prefix("/var/").unwrap_or(path).to_owned())
}

fn found<'a>(effective: &'a Effective, path: &str) -> Option<&'a NodeFile> {
    effective.config.files.iter().find(|file| place(&file.path) == place(path))
}

/// Whether it is one of these kubeconfigs, or one of them may name it. Relative names count from the kubeconfig, so the last part of the
/// path decides.
fn leads(kubeconfigs: &[NamedKubeconfig], file: &NodeFile) -> bool {
    let (own, name) = (place(&file.path), file.path.rsplit('/').next().unwrap_or_default());
    kubeconfigs.iter().any(|kubeconfig| {
        kubeconfig.place == own || kubeconfig.text.as_deref().is_none_or(|text| text.contains(name))
    })
}

#[cfg(test)]
mod tests {
    use crate::base64;
    use crate::node::tests::source;
    use crate::node::{changes, load};

    const DIRECTORY: &str = "/var/lib/orlop/files";
    const JOIN: &str = "join: {kubeconfig: /var/lib/orlop/files/kubeconfig}\n";

    /// Whether the one changed key `path` is a way to the node.
    fn is_way_in(path: &str, before: &str, after: &str) -> bool {
        let loaded = |body: &str| {
            let effective = load(&[source("node", body)], &[]);
            assert_eq!(effective.accepted.len(), 1, "{:?}", effective.problems);
            effective
        };
        let rows = changes(&loaded(before), &loaded(after));
        assert_eq!(rows.iter().map(|row| row.path.as_str()).collect::<Vec<_>>(), [path]);
        rows[0].is_way_in
    }

    fn files(all: &[(&str, &str)]) -> String {
        let entry = |(path, content): &(&str, &str)| format!("{{path: {path}, content: '{content}'}}");
        format!("files: [{}]\n", all.iter().map(entry).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn the_kubeconfig_of_join_is_a_way_in() {
        let kubeconfig = format!("{DIRECTORY}/kubeconfig");
        let with = |text: &str| format!("{JOIN}{}", files(&[(&kubeconfig, text)]));
        assert!(is_way_in("files", &with("a"), &with("b")));
        assert!(is_way_in("files", &with("a"), JOIN), "it goes");
        assert!(is_way_in("files", JOIN, &with("a")), "it comes");
        let data = |text: &str| {
            format!("{JOIN}files: [{{path: {kubeconfig}, data: {}}}]\n", base64::encode(text.as_bytes()))
        };
        assert!(is_way_in("files", &data("a"), &data("b")));
        let bootstrap = |text: &str| {
            format!("join: {{bootstrapKubeconfig: {kubeconfig}}}\n{}", files(&[(&kubeconfig, text)]))
        };
        assert!(is_way_in("files", &bootstrap("a"), &bootstrap("b")));
        // The same place by its two names.
        let linked = |text: &str| {
            let file = files(&[("/etc/kubernetes/kubelet.conf", text)]);
            format!("join: {{kubeconfig: /var/lib/orlop/kubernetes/kubelet.conf}}\n{file}")
        };
        assert!(is_way_in("files", &linked("a"), &linked("b")));
    }

    #[test]
    fn a_file_that_the_kubeconfig_names_is_a_way_in_and_others_are_none() {
        let kubeconfig = format!("{DIRECTORY}/kubeconfig");
        let with = |text: &str, path: &str, content: &str| {
            format!("{JOIN}{}", files(&[(&kubeconfig, text), (path, content)]))
        };
        let text = "certificate-authority: pki/cluster-ca.pem";
        let named = format!("{DIRECTORY}/pki/cluster-ca.pem");
        assert!(is_way_in("files", &with(text, &named, "a"), &with(text, &named, "b")));
        let other = format!("{DIRECTORY}/motd");
        assert!(!is_way_in("files", &with(text, &other, "a"), &with(text, &other, "b")));
        // No document brings the kubeconfig, so nobody knows which files it names.
        let alone = |content: &str| format!("{JOIN}{}", files(&[(&other, content)]));
        assert!(is_way_in("files", &alone("a"), &alone("b")));
        // A node without a kubeconfig of its own.
        let token = |content: &str| format!("labels: {{a: b}}\n{}", files(&[(&kubeconfig, content)]));
        assert!(!is_way_in("files", &token("a"), &token("b")));
    }

    #[test]
    fn the_authorities_of_the_machine_are_a_way_in_where_a_kubeconfig_has_none() {
        let certificate = base64::encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let path = format!("{DIRECTORY}/kubeconfig");
        let with = |text: &str| format!("{JOIN}{}", files(&[(&path, text)]));
        let trusting = |text: &str| format!("{}trust: {{caCertificates: [{certificate}]}}\n", with(text));
        let (silent, speaking) = ("server: https://cluster", "certificate-authority-data: AA==");
        assert!(is_way_in("trust.caCertificates", &with(silent), &trusting(silent)));
        assert!(!is_way_in("trust.caCertificates", &with(speaking), &trusting(speaking)));
    }
}
