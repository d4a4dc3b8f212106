//! The registry of cases, area by area.

use crate::case::Case;

pub mod api;
pub mod api_load;
pub mod api_logs;
pub mod api_metrics;
pub mod api_pod_resources;
pub mod api_stats;
pub mod api_streams;
pub mod api_tools;
pub mod api_top;
pub mod boot;
pub mod boot_believes;
pub mod boot_refused;
pub mod cri_contract;
pub mod cri_golden;
pub mod defence_cgroups;
pub mod defence_disk;
pub mod defence_eviction;
pub mod defence_images;
pub mod defence_logs;
pub mod defence_memory;
pub mod defence_no_space;
pub mod image;
pub mod join;
pub mod join_admission;
pub mod join_certificates;
pub mod join_claims;
pub mod join_clock;
pub mod join_cloud;
pub mod join_csi;
pub mod join_csi_block;
pub mod join_csi_claims;
pub mod join_csi_limits;
pub mod join_csi_migrated;
pub mod join_csi_power;
pub mod join_disks;
pub mod join_env_files;
pub mod join_flex;
pub mod join_image_volumes;
pub mod join_images;
pub mod join_iscsi;
pub mod join_network;
pub mod join_network_disks;
pub mod join_nfs;
pub mod join_node;
pub mod join_outage;
pub mod join_plugins;
pub mod join_pods;
pub mod join_read_only;
pub mod join_refused;
pub mod join_resize;
pub mod join_runtime_class;
pub mod join_selinux;
pub mod join_services;
pub mod join_status;
pub mod join_sub_paths;
pub mod join_users;
pub mod join_vm;
pub mod join_volumes;
pub mod join_volumes_certificates;
pub mod join_volumes_hostile;
pub mod join_volumes_quota;
pub mod join_volumes_steps;
pub mod join_volumes_vm;
pub mod lifecycle;
pub mod lifecycle_churn;
pub mod lifecycle_crash;
pub mod lifecycle_hooks;
pub mod lifecycle_hostile;
pub mod lifecycle_logs;
pub mod lifecycle_probes;
pub mod lifecycle_time;
pub mod lifecycle_url;
pub mod runtime_control;
pub mod shutdown;

/// Every case, in the order of `list`.
#[must_use]
pub fn all() -> Vec<Case> {
    [
        image::CASES,
        boot::CASES,
        boot_believes::CASES,
        boot_refused::CASES,
        defence_cgroups::CASES,
        runtime_control::CASES,
        cri_contract::CASES,
        join::CASES,
        join_node::CASES,
        join_outage::CASES,
        join_status::CASES,
        join_pods::CASES,
        join_network::CASES,
        join_refused::CASES,
        join_certificates::CASES,
        join_cloud::CASES,
        join_users::CASES,
        join_vm::CASES,
        join_env_files::CASES,
        join_images::CASES,
        join_plugins::CASES,
        join_runtime_class::CASES,
        join_services::CASES,
        join_admission::CASES,
        defence_eviction::CASES,
        defence_memory::CASES,
        defence_disk::CASES,
        defence_no_space::CASES,
        join_resize::CASES,
        cri_golden::CASES,
        join_volumes::CASES,
        join_sub_paths::CASES,
        join_volumes_hostile::CASES,
        join_volumes_quota::CASES,
        join_volumes_steps::CASES,
        join_volumes_certificates::CASES,
        join_image_volumes::CASES,
        join_read_only::CASES,
        join_nfs::CASES,
        join_claims::CASES,
        join_csi::CASES,
        join_csi_block::CASES,
        join_csi_claims::CASES,
        join_csi_limits::CASES,
        join_csi_migrated::CASES,
        join_csi_power::CASES,
        join_volumes_vm::CASES,
        join_iscsi::CASES,
        join_selinux::CASES,
        join_disks::CASES,
        join_network_disks::CASES,
        join_flex::CASES,
        join_clock::CASES,
        api::CASES,
        api_load::CASES,
        api_logs::CASES,
        api_metrics::CASES,
        api_streams::CASES,
        api_pod_resources::CASES,
        api_stats::CASES,
        api_top::CASES,
        api_tools::CASES,
        lifecycle::CASES,
        lifecycle_time::CASES,
        lifecycle_url::CASES,
        lifecycle_crash::CASES,
        lifecycle_churn::CASES,
        lifecycle_hostile::CASES,
        lifecycle_probes::CASES,
        lifecycle_hooks::CASES,
        lifecycle_logs::CASES,
        shutdown::CASES,
        defence_images::CASES,
        defence_logs::CASES,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_carry_an_area() {
        let cases = all();
        let names: BTreeSet<_> = cases.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), cases.len());
        let areas = ["boot/", "join/", "lifecycle/", "api/", "volumes/", "shutdown/", "defence/"];
        for case in cases {
            assert!(areas.iter().any(|a| case.name.starts_with(a)), "{}", case.name);
            assert!(case.expected_s > 0 && !case.about.is_empty(), "{}", case.name);
        }
    }
}
