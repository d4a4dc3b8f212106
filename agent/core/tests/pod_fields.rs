//! Every field of a pod's specification has a reader in the agent, or a reason why it has none: no field is accepted and ignored.
//!
//! In: the types of k8s-openapi, which name their fields to a deserializer; `fixtures/pod_fields.txt`, the table. Checked: the table has each
//! field of each type once and no other field; the code of the file that reads a field has its name. So a field that is new in
//! k8s-openapi fails the test until the agent reads it, or the table says why it does not. For KubeletConfiguration the rule `readers` of
//! agent-tidy does the same.
#![allow(clippy::disallowed_methods)] // it reads the agent's sources

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as api;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};

const TABLE: &str = include_str!("fixtures/pod_fields.txt");
/// Marks a reason in the place of a reader.
const REASON: &str = "- ";

/// Names of a struct's fields: the error of [`FieldNames`], which deserializes nothing.
#[derive(Debug)]
struct StructFields(&'static [&'static str]);

impl fmt::Display for StructFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for StructFields {}

impl de::Error for StructFields {
    fn custom<T: fmt::Display>(_: T) -> StructFields {
        StructFields(&[])
    }
}

/// A deserializer that gives the names of a struct's fields as its error.
struct FieldNames;

impl<'de> Deserializer<'de> for FieldNames {
    type Error = StructFields;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, StructFields> {
        Err(StructFields(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, StructFields> {
        Err(StructFields(fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<T: DeserializeOwned>() -> BTreeSet<&'static str> {
    T::deserialize(FieldNames)
        .err()
        .map(|StructFields(fields)| fields.iter().copied().collect())
        .unwrap_or_default()
}

macro_rules! types {
    ($($name:ident),+ $(,)?) => {
        /// The types with their fields.
        fn types() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
            BTreeMap::from([$((stringify!($name), fields::<api::$name>())),+])
        }
    };
}

types! {
    AWSElasticBlockStoreVolumeSource, AppArmorProfile, AzureDiskVolumeSource, AzureFileVolumeSource,
    CSIVolumeSource, Capabilities, CinderVolumeSource, ClusterTrustBundleProjection, ConfigMapEnvSource,
    ConfigMapKeySelector, ConfigMapProjection, ConfigMapVolumeSource, Container, ContainerPort,
    ContainerResizePolicy, ContainerRestartRule, ContainerRestartRuleOnExitCodes, DownwardAPIProjection,
    DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, EnvFromSource, EnvVar,
    EnvVarSource, EphemeralContainer, EphemeralVolumeSource, ExecAction, FCVolumeSource, FileKeySelector,
    FlexVolumeSource, GCEPersistentDiskVolumeSource, GRPCAction, HTTPGetAction, HTTPHeader, HostAlias,
    HostPathVolumeSource, ISCSIVolumeSource, ImageVolumeSource, KeyToPath, Lifecycle, LifecycleHandler,
    LocalObjectReference, NFSVolumeSource, ObjectFieldSelector, PersistentVolumeClaimVolumeSource,
    PodCertificateProjection, PodDNSConfig, PodDNSConfigOption, PodOS, PodReadinessGate, PodResourceClaim,
    PodSecurityContext, PodSpec, PortworxVolumeSource, Probe, ProjectedVolumeSource, ResourceClaim,
    ResourceFieldSelector, ResourceRequirements, SELinuxOptions, SeccompProfile, SecretEnvSource,
    SecretKeySelector, SecretProjection, SecretVolumeSource, SecurityContext, ServiceAccountTokenProjection,
    SleepAction, Sysctl, TCPSocketAction, Toleration, Volume, VolumeDevice, VolumeMount, VolumeProjection,
    VsphereVirtualDiskVolumeSource,
}

/// A row: type, reader or reason, fields.
fn rows() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut cells = line.split('|').map(str::trim);
        let mut cell = || cells.next().unwrap_or_else(|| panic!("three cells: {line:?}"));
        (cell(), cell(), cell().split(' ').collect())
    };
    lines.map(row).collect()
}

#[test]
fn the_table_has_each_field_once_and_no_other() {
    let mut listed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, reader, fields) in rows() {
        assert!(!fields.is_empty() && reader.len() > REASON.len(), "{name} {reader}: {fields:?}");
        for field in fields {
            assert!(listed.entry(name).or_default().insert(field), "{name}.{field} is there twice");
        }
    }
    let types = types();
    assert!(types.values().map(BTreeSet::len).sum::<usize>() > 250, "fields were not understood: {types:?}");
    for (name, fields) in &types {
        let table = listed.remove(name).unwrap_or_default();
        let missing: Vec<_> = fields.difference(&table).collect();
        let unknown: Vec<_> = table.difference(fields).collect();
        assert!(missing.is_empty(), "{name} has fields without a row: {missing:?}");
        assert!(unknown.is_empty(), "{name} does not have these fields: {unknown:?}");
    }
    assert!(listed.is_empty(), "types that the test does not ask: {listed:?}");
}

/// Words of the code, without tests, comments and underscores, in small letters: `host_ipc` and `hostIPC` are the same.
fn words(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.map(|word| word.replace('_', "").to_lowercase()).collect()
}

#[test]
fn each_reader_names_its_fields() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, reader, fields) in rows().iter().filter(|(_, reader, _)| !reader.starts_with(REASON)) {
        let words = words(&root.join(reader));
        for field in fields {
            assert!(words.contains(&field.to_lowercase()), "{reader} does not read {name}.{field}");
        }
    }
}
