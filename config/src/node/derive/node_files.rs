//! The files that a document brings, and the files that it names.

use crate::node::effective::Effective;
use crate::node::node_file::{NodeFile, PlacedFile, is_within};
use crate::node::types::NodeConfig;

/// The files of the configuration, in its order. Validation has found no mistake in them.
#[must_use]
pub fn placed_files(config: &NodeConfig) -> Vec<PlacedFile> {
    config.files.iter().filter_map(NodeFile::placed).collect()
}

/// Keys that name a file, and the file, for each file that the configuration does not bring itself: it should be in the
/// image or on the state partition. What lies in `/run` is made later.
#[must_use]
pub fn named_files(effective: &Effective) -> Vec<(&'static str, String)> {
    let (config, kubelet) = (&effective.config, &effective.kubelet);
    let join = config.join.as_ref();
    let named = [
        ("kubelet.authentication.x509.clientCAFile", Some(&kubelet.authentication.x509.client_ca_file)),
        ("kubelet.tlsCertFile", Some(&kubelet.tls_cert_file)),
        ("kubelet.tlsPrivateKeyFile", Some(&kubelet.tls_private_key_file)),
        ("kubelet.resolvConf", Some(&kubelet.resolv_conf)),
        ("join.kubeconfig", join.and_then(|join| join.kubeconfig.as_ref())),
        ("join.bootstrapKubeconfig", join.and_then(|join| join.bootstrap_kubeconfig.as_ref())),
    ];
    let brought = |path: &str| config.files.iter().any(|file| file.path == path);
    let is_asked = |path: &String| path.starts_with('/') && !is_within(path, "/run") && !brought(path);
    named
        .into_iter()
        .filter_map(|(key, path)| Some((key, path.filter(|path| is_asked(path))?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::one;

    #[test]
    fn files_that_a_document_names_and_does_not_bring() {
        let named = |body: &str| {
            let effective = one(body);
            assert_eq!(effective.problems, [], "{body}");
            named_files(&effective)
        };
        let resolver = ("kubelet.resolvConf", "/etc/resolv.conf".to_owned());
        assert_eq!(named(""), [resolver]);
        assert!(named("kubelet: {resolvConf: ''}").is_empty());
        let kubelet = "kubelet: {tlsCertFile: /etc/kubernetes/a.crt, tlsPrivateKeyFile: /var/lib/orlop/files/a.key, \
                       resolvConf: /run/x, authentication: {x509: {clientCAFile: /etc/kubernetes/ca.crt}}}\n";
        let keys =
            |body: &str| -> Vec<&'static str> { named(body).into_iter().map(|(key, _)| key).collect() };
        assert_eq!(
            keys(kubelet),
            ["kubelet.authentication.x509.clientCAFile", "kubelet.tlsCertFile", "kubelet.tlsPrivateKeyFile"]
        );
        let files = "files: [{path: /etc/kubernetes/a.crt, content: x}, {path: /etc/kubernetes/ca.crt, data: eA==}]\n";
        assert_eq!(keys(&format!("{kubelet}{files}")), ["kubelet.tlsPrivateKeyFile"]);
        let join = "join: {bootstrapKubeconfig: /etc/kubernetes/bootstrap.conf}";
        assert_eq!(keys(join), ["kubelet.resolvConf", "join.bootstrapKubeconfig"]);
    }

    #[test]
    fn contents_as_they_are_written() {
        let effective = one(
            "files:\n- {path: /etc/kubernetes/a, content: \"x\\n\", mode: '0640', gid: 7}\n- {path: /var/lib/orlop/files/b/c, data: /w==}\n",
        );
        assert_eq!(effective.problems, []);
        let placed = placed_files(&effective.config);
        let shown: Vec<String> = placed.iter().map(|file| format!("{file:?}")).collect();
        assert_eq!(
            shown,
            ["/etc/kubernetes/a (640, 0:7, 2 bytes)", "/var/lib/orlop/files/b/c (600, 0:0, 1 bytes)"]
        );
        assert_eq!((placed[0].content.as_slice(), placed[1].content.as_slice()), (&b"x\n"[..], &[0xff][..]));
    }
}
