//! The descriptor of a virtual machine for vSphere (DMTF DSP0243, OVF 1.1), and the digests of its files (pure).
//!
//! UEFI, PVSCSI and VMXNET 3; the file with the digests goes right behind the descriptor in the archive.

/// The machine that a person gets before they change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachineDescription<'a> {
    /// Version of the image.
    pub(super) version: &'a str,
    /// File of the disk, next to the descriptor.
    pub(super) disk_file: &'a str,
    /// Its size, bytes.
    pub(super) file_bytes: u64,
    /// Size of the disk in it, bytes.
    pub(super) disk_bytes: u64,
    /// Processors.
    pub(super) processors: u32,
    /// Memory, MiB.
    pub(super) memory_mib: u32,
}

/// The descriptor's text.
#[must_use]
pub(super) fn descriptor(machine: &MachineDescription<'_>) -> String {
    let MachineDescription { version, disk_file, file_bytes, disk_bytes, processors, memory_mib } = machine;
    let items = items(*processors, *memory_mib);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
<Envelope xmlns=\"http://schemas.dmtf.org/ovf/envelope/1\"\n\
  xmlns:ovf=\"http://schemas.dmtf.org/ovf/envelope/1\"\n\
  xmlns:rasd=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData\"\n\
  xmlns:vssd=\"http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData\"\n\
  xmlns:vmw=\"http://www.vmware.com/schema/ovf\">\n\
  <References>\n\
    <File ovf:id=\"file1\" ovf:href=\"{disk_file}\" ovf:size=\"{file_bytes}\"/>\n\
  </References>\n\
  <DiskSection>\n\
    <Info>disks</Info>\n\
    <Disk ovf:diskId=\"disk1\" ovf:fileRef=\"file1\" ovf:capacity=\"{disk_bytes}\" ovf:capacityAllocationUnits=\"byte\" \
ovf:format=\"http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized\"/>\n\
  </DiskSection>\n\
  <NetworkSection>\n\
    <Info>networks</Info>\n\
    <Network ovf:name=\"network\"><Description>the node's network</Description></Network>\n\
  </NetworkSection>\n\
  <VirtualSystem ovf:id=\"orlop\">\n\
    <Info>Orlop {version}</Info>\n\
    <Name>orlop</Name>\n\
    <OperatingSystemSection ovf:id=\"101\" vmw:osType=\"otherLinux64Guest\"><Info>Linux, 64 bits</Info></OperatingSystemSection>\n\
    <VirtualHardwareSection>\n\
      <Info>hardware</Info>\n\
      <System>\n\
        <vssd:ElementName>hardware</vssd:ElementName>\n\
        <vssd:InstanceID>0</vssd:InstanceID>\n\
        <vssd:VirtualSystemIdentifier>orlop</vssd:VirtualSystemIdentifier>\n\
        <vssd:VirtualSystemType>vmx-13</vssd:VirtualSystemType>\n\
      </System>\n\
{items}\
      <vmw:Config ovf:required=\"false\" vmw:key=\"firmware\" vmw:value=\"efi\"/>\n\
    </VirtualHardwareSection>\n\
  </VirtualSystem>\n\
</Envelope>\n"
    )
}

/// The hardware: processors, memory, controller, disk, network card.
fn items(processors: u32, memory_mib: u32) -> String {
    [
        item(
            &[("ElementName", "processors"), ("InstanceID", "1"), ("ResourceType", "3")],
            &processors.to_string(),
        ),
        item(
            &[
                ("AllocationUnits", "byte * 2^20"),
                ("ElementName", "memory"),
                ("InstanceID", "2"),
                ("ResourceType", "4"),
            ],
            &memory_mib.to_string(),
        ),
        item(
            &[
                ("Address", "0"),
                ("ElementName", "SCSI controller 0"),
                ("InstanceID", "3"),
                ("ResourceSubType", "VirtualSCSI"),
                ("ResourceType", "6"),
            ],
            "",
        ),
        item(
            &[
                ("AddressOnParent", "0"),
                ("ElementName", "disk 0"),
                ("HostResource", "ovf:/disk/disk1"),
                ("InstanceID", "4"),
                ("Parent", "3"),
                ("ResourceType", "17"),
            ],
            "",
        ),
        item(
            &[
                ("AddressOnParent", "7"),
                ("AutomaticAllocation", "true"),
                ("Connection", "network"),
                ("ElementName", "network card 0"),
                ("InstanceID", "5"),
                ("ResourceSubType", "VmxNet3"),
                ("ResourceType", "10"),
            ],
            "",
        ),
    ]
    .concat()
}

/// One item; its elements are in alphabetical order, as the schema has them, the quantity among them.
fn item(elements: &[(&str, &str)], quantity: &str) -> String {
    let mut elements = elements.to_vec();
    if !quantity.is_empty() {
        elements.push(("VirtualQuantity", quantity));
    }
    let lines: String = elements
        .iter()
        .map(|(name, value)| format!("        <rasd:{name}>{value}</rasd:{name}>\n"))
        .collect();
    format!("      <Item>\n{lines}      </Item>\n")
}

/// The file with the digests: names and SHA-256 in hex.
#[must_use]
pub(super) fn digests(files: &[(&str, &str)]) -> String {
    files.iter().map(|(name, sha256)| format!("SHA256({name})= {sha256}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        descriptor(&MachineDescription {
            version: "0.1.0",
            disk_file: "orlop-disk1.vmdk",
            file_bytes: 123,
            disk_bytes: 1 << 30,
            processors: 2,
            memory_mib: 2048,
        })
    }

    #[test]
    fn firmware_controller_card_and_disk() {
        let text = text();
        for part in [
            "vmw:key=\"firmware\" vmw:value=\"efi\"",
            "<rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType>",
            "<rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType>",
            "ovf:href=\"orlop-disk1.vmdk\" ovf:size=\"123\"",
            "ovf:capacity=\"1073741824\"",
            "<rasd:VirtualQuantity>2048</rasd:VirtualQuantity>",
            "<Info>Orlop 0.1.0</Info>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn every_element_is_closed_where_it_was_opened() {
        let text = text();
        let mut open: Vec<&str> = Vec::new();
        for tag in text.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or_default()) {
            let name = tag.split_whitespace().next().unwrap_or_default();
            if let Some(closed) = name.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed));
            } else if !tag.ends_with('/') && !name.starts_with('?') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!text.contains("  \n") && text.lines().all(|line| !line.is_empty()));
    }

    #[test]
    fn digests_are_lines() {
        assert_eq!(digests(&[("a.ovf", "01"), ("b.vmdk", "02")]), "SHA256(a.ovf)= 01\nSHA256(b.vmdk)= 02\n");
    }
}
