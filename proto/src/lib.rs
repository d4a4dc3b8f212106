//! The public wire contracts that Orlop speaks, restated in our own `.proto` files, and the code generated from
//! them: CRI v1 ([`cri::v1`]) as of Kubernetes v1.36, whole; of gRPC's health checking protocol
//! ([`grpc_health::v1`]) what a probe asks; the kubelet's own pod resources API ([`pod_resources`]); plugin registration
//! ([`plugin_registration`]), device plugins ([`device_plugin`]) and DRA drivers ([`dra`], [`dra_health`]), whole; of
//! CSI ([`csi::v1`]) what is asked when a driver is registered and when a volume is mounted for one pod. [`node_api`] is
//! Orlop's own: the node management API.
//!
//! In: `proto/**/*.proto`. Out: message types, clients and server traits.
//! Invariant: every name, number and type is that of the public contract; `tests/facts.rs` compares with the
//! table in `facts/`, and `contract` with the descriptor inside a real runtime's binary.

#![forbid(unsafe_code)]

#[cfg(feature = "contract")]
pub mod contract;
pub mod node_api_serial;

/// Container Runtime Interface.
pub mod cri {
    /// Package `runtime.v1`.
    #[allow(
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        clippy::all,
        clippy::pedantic,
        clippy::unwrap_used,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");

        /// Serialised `FileDescriptorSet` of the package.
        pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cri_v1.bin"));
    }
}

/// Plugin registration.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod plugin_registration {
    tonic::include_proto!("pluginregistration");
}

/// Container Storage Interface.
pub mod csi {
    /// Package `csi.v1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}

/// Device plugins.
pub mod device_plugin {
    use prost::Message as _;

    /// The bytes of an answer; equal answers have equal bytes.
    #[must_use]
    pub fn encode(answer: &v1beta1::ContainerAllocateResponse) -> Vec<u8> {
        answer.encode_to_vec()
    }

    /// The answer with these bytes.
    ///
    /// # Errors
    /// The bytes are no such message.
    pub fn decode(bytes: &[u8]) -> Result<v1beta1::ContainerAllocateResponse, prost::DecodeError> {
        v1beta1::ContainerAllocateResponse::decode(bytes)
    }

    /// Number of bytes of a device in a list.
    #[must_use]
    pub fn size(device: &v1beta1::Device) -> usize {
        device.encoded_len()
    }

    /// Package `v1beta1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1beta1 {
        tonic::include_proto!("v1beta1");
    }
}

/// DRA drivers: the resources of claims.
pub mod dra {
    /// Package `k8s.io.kubelet.pkg.apis.dra.v1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/dra/k8s.io.kubelet.pkg.apis.dra.v1.rs"));
    }

    /// Package `k8s.io.kubelet.pkg.apis.dra.v1beta1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1beta1 {
        include!(concat!(env!("OUT_DIR"), "/dra/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs"));
    }
}

/// DRA drivers: the health of devices.
pub mod dra_health {
    /// Package `v1alpha1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1alpha1 {
        include!(concat!(env!("OUT_DIR"), "/dra/v1alpha1.rs"));
    }
}

/// gRPC health checking protocol.
pub mod grpc_health {
    /// Package `grpc.health.v1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("grpc.health.v1");
    }
}

/// The node management API (docs/reference/node-api.md).
pub mod node_api {
    use prost::Message as _;

    /// `apiVersion` of its objects.
    pub const API_VERSION: &str = "orlop.node/v1alpha1";
    /// Its port, on vsock.
    pub const PORT: u32 = 10270;
    /// Its unix socket.
    pub const SOCKET: &str = "/run/orlop/api.sock";
    /// The server's unix socket for the program that serves the virtio-serial port, root only.
    pub const SERIAL_SOCKET: &str = "/run/orlop/api-serial.sock";
    /// The agent's unix socket for the server of this API, root only.
    pub const AGENT_SOCKET: &str = "/run/orlop/agent.sock";

    /// The bytes of a refusal's detail.
    #[must_use]
    pub fn encode(detail: &v1alpha1::ErrorDetail) -> Vec<u8> {
        detail.encode_to_vec()
    }

    /// The detail with these bytes.
    ///
    /// # Errors
    /// The bytes are no such message.
    pub fn decode(bytes: &[u8]) -> Result<v1alpha1::ErrorDetail, prost::DecodeError> {
        v1alpha1::ErrorDetail::decode(bytes)
    }

    /// Package `orlop.node.v1alpha1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1alpha1 {
        tonic::include_proto!("orlop.node.v1alpha1");
    }
}

/// Which devices, processors and memory the kubelet gave to containers.
pub mod pod_resources {
    /// Package `v1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("v1");
    }

    /// Package `v1alpha1`: names and devices only.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
}
