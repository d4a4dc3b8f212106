//! `awsElasticBlockStore`: `ebs.csi.aws.com`.
//!
//! In: the volume's id, bare or as a URL. Out: the bare id as the handle. Upstream:
//! csi-translation-lib/plugins/aws_ebs.go.

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, PersistentVolume,
};

use super::topology::{Keys, Labels};
use super::{Driver, Inline, ONE_NODE, as_they_are, source};

/// An id with a zone before it begins so.
const URL: &str = "aws://";

pub(super) const DRIVER: Driver = Driver {
    name: "ebs.csi.aws.com",
    topology: Some(Keys { zone: "topology.ebs.csi.aws.com/zone", region: None, labels: Labels::Zones }),
    persistent: |volume| Some(csi(persistent(volume)?)),
    inline: |volume, _| Some(inline(volume.aws_elastic_block_store.as_ref()?)),
    access_modes: as_they_are,
};

fn persistent(volume: &PersistentVolume) -> Option<&AWSElasticBlockStoreVolumeSource> {
    volume.spec.as_ref()?.aws_elastic_block_store.as_ref()
}

fn csi(of: &AWSElasticBlockStoreVolumeSource) -> Result<CSIPersistentVolumeSource, String> {
    let handle = volume_id(&of.volume_id)
        .map_err(|why| format!("failed to translate Kubernetes ID to EBS Volume ID {why}"))?;
    let partition = of.partition.unwrap_or_default().to_string();
    Ok(source(&handle, of.fs_type.as_ref(), of.read_only, [("partition", partition)]))
}

fn inline(of: &AWSElasticBlockStoreVolumeSource) -> Result<Inline, String> {
    let source = csi(of)?;
    let name = format!("{}-{}", DRIVER.name, source.volume_handle);
    Ok(Inline { name, source, access_mode: ONE_NODE })
}

/// `vol-1` of `vol-1`, `aws:///vol-1` and `aws://zone/vol-1`; what does not begin as a URL is passed on as it is.
fn volume_id(written: &str) -> Result<String, String> {
    let Some(rest) = written.strip_prefix(URL) else { return Ok(written.to_owned()) };
    let path =
        path_of(rest).map_err(|why| format!("Invalid disk name ({written}): parse {written:?}: {why}"))?;
    let id = path.trim_matches('/');
    if !id.starts_with("vol-") || id.contains('/') {
        return Err(format!("Invalid format for AWS volume ({written})"));
    }
    Ok(id.to_owned())
}

/// The path of a URL, of which `rest` is what comes after the scheme; the error is the Go library's.
fn path_of(rest: &str) -> Result<String, String> {
    if rest.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let rest = rest.split(['#', '?']).next().unwrap_or_default();
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let outside =
        |b: &u8| b.is_ascii() && !b.is_ascii_alphanumeric() && !b"-_.~!$&'()*+,;=:[]<>\"%@".contains(b);
    if let Some(byte) = host.bytes().find(|b| outside(b)) {
        return Err(format!("invalid character {:?} in host name", char::from(byte).to_string()));
    }
    unescaped(path)
}

/// A path without `%xx`.
fn unescaped(path: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(byte) = byte.and_then(|two| u8::from_str_radix(two, 16).ok()) else {
            let wrong = String::from_utf8_lossy(rest.get(..3).unwrap_or(rest)).into_owned();
            return Err(format!("invalid URL escape {wrong:?}"));
        };
        bytes.push(byte);
        rest = &after[2..];
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
