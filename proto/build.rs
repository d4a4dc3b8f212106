//! Compiles `proto/` without a protoc binary: protox parses, tonic-prost-build generates. The descriptor set is
//! kept too, so that tests can compare it with a runtime's own (`contract`).

use std::error::Error;
use std::path::Path;

use prost::Message as _;

const FILES: [&str; 6] = [
    "runtime/v1/common.proto",
    "runtime/v1/container.proto",
    "runtime/v1/image.proto",
    "runtime/v1/runtime.proto",
    "runtime/v1/sandbox.proto",
    "runtime/v1/stats.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("cri_v1.bin"), descriptors.encode_to_vec())?;
    // Servers here are fakes and answer what they implement; the rest is `Unimplemented`.
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(descriptors)?;
    let health = protox::compile(["grpc/health/v1/health.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(health)?;
    let pods = ["podresources/v1/podresources.proto", "podresources/v1alpha1/podresources.proto"];
    tonic_prost_build::configure().compile_fds(protox::compile(pods, ["proto"])?)?;
    let plugins =
        protox::compile(["csi/v1/csi.proto", "pluginregistration/v1/registration.proto"], ["proto"])?;
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(plugins)?;
    let devices = protox::compile(["deviceplugin/v1beta1/deviceplugin.proto"], ["proto"])?;
    // Maps in order: the bytes of an answer go into a checkpoint with a checksum.
    tonic_prost_build::configure().btree_map(".v1beta1").compile_fds(devices)?;
    node_api()?;
    dra()
}

/// The node management API. Clients show its objects as JSON, so messages serialise.
fn node_api() -> Result<(), Box<dyn Error>> {
    const PACKAGE: &str = ".orlop.node.v1alpha1";
    const FILES: &[&str] = &[
        "orlop/node/v1alpha1/agent.proto",
        "orlop/node/v1alpha1/capture.proto",
        "orlop/node/v1alpha1/node.proto",
        "orlop/node/v1alpha1/operations.proto",
    ];
    let node = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .type_attribute(PACKAGE, "#[derive(serde::Serialize)]")
        .type_attribute(PACKAGE, "#[serde(rename_all = \"camelCase\")]")
        // The object's kind says which status it has.
        .type_attribute(".orlop.node.v1alpha1.Object.status", "#[serde(untagged)]")
        .compile_fds(node)?;
    Ok(())
}

/// DRA drivers. Their packages have the files of other packages: `v1alpha1` is one of the pod resources API, too.
fn dra() -> Result<(), Box<dyn Error>> {
    let out = Path::new(&std::env::var("OUT_DIR")?).join("dra");
    std::fs::create_dir_all(&out)?;
    let configure = || tonic_prost_build::configure().out_dir(&out);
    let plugins = protox::compile(["dra/v1/api.proto", "dra/v1beta1/api.proto"], ["proto"])?;
    configure().generate_default_stubs(true).compile_fds(plugins)?;
    configure().compile_fds(protox::compile(["dra-health/v1alpha1/api.proto"], ["proto"])?)?;
    Ok(())
}
