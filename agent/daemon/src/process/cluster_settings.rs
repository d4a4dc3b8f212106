//! The cluster that the node joins, from flags and files.
//!
//! In: `--kubeconfig`, `--bootstrap-kubeconfig`, `--join`, `--cert-dir`, `--cloud-provider`. Out:
//! [`ClusterSettings`]; `None` for a standalone node. Invariant: a node whose state partition cannot be used
//! joins no cluster, because its identity would be lost at the next boot.

use std::path::{Path, PathBuf};

use agent_core::node_status::{JoinError, may_join};
use anyhow::bail;
use orlop_config::kubelet::flags::args::Options;

use crate::settings::ClusterSettings;

/// File by which init reports that the state partition is not used.
const DEGRADED: &str = "/run/orlop/degraded";

/// Takes the agent's own flag `--join FILE` out of the arguments.
///
/// # Errors
/// The flag has no value.
pub fn take_join(arguments: Vec<String>) -> anyhow::Result<(Option<PathBuf>, Vec<String>)> {
    crate::process::cli::take_flag("--join", arguments)
}

/// Combines the flags.
///
/// # Errors
/// A flag that needs another one. The files that the flags name are read later: a node that cannot join reports this
/// and runs its static pods meanwhile.
pub fn read(options: &Options, join: Option<&Path>) -> anyhow::Result<Option<ClusterSettings>> {
    let Some(kubeconfig) = &options.kubeconfig else {
        let given = [
            ("--bootstrap-kubeconfig", options.bootstrap_kubeconfig.is_some()),
            ("--join", join.is_some()),
            ("--cloud-provider", options.cloud_provider.is_some()),
        ];
        if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
            bail!("{flag}: needs --kubeconfig, the file that is to hold the node's identity");
        }
        return Ok(None);
    };
    if join.is_some() && options.bootstrap_kubeconfig.is_some() {
        bail!("--join: excludes --bootstrap-kubeconfig; both say how to ask for the first certificate");
    }
    Ok(Some(ClusterSettings {
        kubeconfig: PathBuf::from(kubeconfig),
        bootstrap_kubeconfig: options.bootstrap_kubeconfig.as_deref().map(PathBuf::from),
        join: join.map(Path::to_owned),
        cert_dir: PathBuf::from(&options.cert_dir),
    }))
}

/// Why this node must not join, if it must not.
#[must_use]
pub fn forbidden() -> Option<JoinError> {
    may_join(std::fs::read_to_string(DEGRADED).ok().as_deref()).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kubeconfig: Option<&str>) -> Options {
        Options { kubeconfig: kubeconfig.map(str::to_owned), ..Options::default() }
    }

    #[test]
    fn a_node_without_kubeconfig_is_standalone() {
        assert!(read(&options(None), None).unwrap().is_none());
        let bootstrap = Options { bootstrap_kubeconfig: Some("/b".to_owned()), ..options(None) };
        for (options, join, flag) in [
            (bootstrap, None, "--bootstrap-kubeconfig"),
            (options(None), Some(Path::new("/j")), "--join"),
            (
                Options { cloud_provider: Some("external".to_owned()), ..options(None) },
                None,
                "--cloud-provider",
            ),
        ] {
            let message = read(&options, join).unwrap_err().to_string();
            assert!(message.starts_with(flag) && message.contains("--kubeconfig"), "{message}");
        }
    }

    #[test]
    fn a_join_file_need_not_be_there_yet() {
        let settings = read(&options(Some("/k")), Some(Path::new("/none"))).unwrap().unwrap();
        assert_eq!(settings.join.as_deref(), Some(Path::new("/none")));
        assert_eq!(settings.cert_dir, Path::new("/var/lib/kubelet/pki"));
        let both = Options { bootstrap_kubeconfig: Some("/b".to_owned()), ..options(Some("/k")) };
        assert!(read(&both, Some(Path::new("/j"))).unwrap_err().to_string().contains("excludes"));
    }
}
