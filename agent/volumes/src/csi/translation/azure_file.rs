//! `azureFile`: `file.csi.azure.com`.
//!
//! In: share and Secret. Out: a handle of five parts, the Secret for staging. Upstream:
//! csi-translation-lib/plugins/azure_file.go.

use k8s_openapi::api::core::v1::{
    AzureFilePersistentVolumeSource, AzureFileVolumeSource, CSIPersistentVolumeSource, PersistentVolume,
    Volume,
};

use super::{Driver, Inline, MANY_WRITE, as_they_are, secret, source};

/// Annotation of a PersistentVolume: where the account is.
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";

pub(super) const DRIVER: Driver = Driver {
    name: "file.csi.azure.com",
    topology: None,
    persistent: |volume| Some(persistent(volume, volume.spec.as_ref()?.azure_file.as_ref()?)),
    inline: |volume, namespace| Some(Ok(inline(volume, volume.azure_file.as_ref()?, namespace))),
    access_modes: as_they_are,
};

fn persistent(
    volume: &PersistentVolume,
    of: &AzureFilePersistentVolumeSource,
) -> Result<CSIPersistentVolumeSource, String> {
    let claim = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    // A namespace that is there and empty is not looked for elsewhere.
    let namespace = of.secret_namespace.as_ref().or_else(|| claim?.namespace.as_ref());
    let namespace = namespace.filter(|n| !n.is_empty());
    let namespace =
        namespace.ok_or("could not find a secret namespace in PersistentVolumeSource or ClaimRef")?;
    let group = volume.metadata.annotations.as_ref().and_then(|all| all.get(RESOURCE_GROUP));
    let handle = handle(
        group.map(String::as_str).unwrap_or_default(),
        (&of.secret_name, &of.share_name),
        volume.metadata.name.as_deref().unwrap_or_default(),
        namespace,
    );
    Ok(csi(&handle, (&of.secret_name, &of.share_name), of.read_only, namespace))
}

fn inline(volume: &Volume, of: &AzureFileVolumeSource, namespace: &str) -> Inline {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let names = (of.secret_name.as_str(), of.share_name.as_str());
    let name = handle("", names, &volume.name, namespace);
    let source = csi(&name, names, of.read_only, namespace);
    Inline { name, source, access_mode: MANY_WRITE }
}

fn csi(
    handle: &str,
    (secret_name, share): (&str, &str),
    read_only: Option<bool>,
    namespace: &str,
) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        node_stage_secret_ref: Some(secret(namespace, secret_name)),
        ..source(handle, None, read_only, [("sharename", share.to_owned())])
    }
}

fn handle(group: &str, (secret_name, share): (&str, &str), volume: &str, namespace: &str) -> String {
    let account = account(secret_name).unwrap_or(secret_name);
    format!("{group}#{account}#{share}#{volume}#{namespace}")
}

/// The account in the name of its Secret: the longest part between the first beginning and the last end.
fn account(secret_name: &str) -> Option<&str> {
    let (_, rest) = secret_name.split_once("azure-storage-account-")?;
    let (account, _) = rest.rsplit_once("-secret")?;
    (!account.is_empty()).then_some(account)
}
