//! The registry of cases, area by area.

use orlop_harness::case::Case;

pub mod addons;
pub mod api;
pub mod arm64;
pub mod boot;
pub mod config;
pub mod console;
pub mod controlplane;
pub mod defence;
pub mod join;
pub mod lean;
pub mod lifecycle;
pub mod manage;
pub mod net;
pub mod places;
pub mod provision;
pub mod reset;
pub mod resources;
pub mod shutdown;
pub mod time;
pub mod trust;
pub mod update;
pub mod volumes;

/// Every case, in the order of `list`.
#[must_use]
pub fn all() -> Vec<Case> {
    [
        boot::image::CASES,
        boot::shared_vm::CASES,
        boot::hardening::CASES,
        boot::containerd::CASES,
        boot::network::CASES,
        defence::apparmor::CASES,
        boot::addon_paths::CASES,
        boot::attached_disks::CASES,
        boot::refused::CASES,
        arm64::boot::CASES,
        places::install::CASES,
        places::buses::CASES,
        places::bios::CASES,
        console::banner::CASES,
        console::faults::CASES,
        manage::bundle::CASES,
        manage::logs::CASES,
        manage::status::CASES,
        manage::metrics::CASES,
        manage::operations::CASES,
        manage::rbac::CASES,
        manage::web::CASES,
        manage::upgrade::CASES,
        manage::serial::CASES,
        controlplane::single::CASES,
        controlplane::power_cuts::CASES,
        config::confirm_contact::CASES,
        config::confirm_gateway::CASES,
        lean::small_machine::CASES,
        defence::cgroups::CASES,
        lifecycle::runtime_control::CASES,
        lifecycle::cri_contract::CASES,
        join::control_plane::CASES,
        join::node::CASES,
        join::api_server_down::CASES,
        join::status::CASES,
        join::kubeconfig::CASES,
        join::restart_all::CASES,
        join::debug::CASES,
        join::bridge_renumbered::CASES,
        join::refused::CASES,
        join::certificates::CASES,
        join::external_cloud::CASES,
        join::user_namespaces::CASES,
        join::vm::CASES,
        volumes::env_files::CASES,
        join::image_pulls::CASES,
        join::credential_provider::CASES,
        join::runtime_class::CASES,
        join::services::CASES,
        addons::services::CASES,
        addons::dual_stack::CASES,
        addons::services_vm::CASES,
        addons::flannel::CASES,
        addons::kube_router::CASES,
        addons::cni_replaced::CASES,
        addons::metrics_server::CASES,
        addons::multus::CASES,
        join::preemption::CASES,
        defence::eviction::CASES,
        defence::blocking::CASES,
        defence::memory::CASES,
        defence::disk_vm::CASES,
        defence::no_space::CASES,
        join::resize::CASES,
        lifecycle::cri_golden::CASES,
        volumes::files::CASES,
        volumes::sub_paths::CASES,
        volumes::hostile::CASES,
        volumes::quota::CASES,
        volumes::killed_steps::CASES,
        volumes::certificates::CASES,
        volumes::image::CASES,
        volumes::recursive_read_only::CASES,
        volumes::propagation::CASES,
        volumes::nfs::CASES,
        volumes::claims::CASES,
        volumes::csi::CASES,
        volumes::csi_block::CASES,
        volumes::csi_claims::CASES,
        volumes::csi_limits::CASES,
        volumes::csi_migrated::CASES,
        volumes::power_cut::CASES,
        volumes::shared_vm::CASES,
        volumes::iscsi_target::CASES,
        volumes::selinux::CASES,
        volumes::disks::CASES,
        volumes::network_disks::CASES,
        volumes::flex::CASES,
        join::wrong_clock::CASES,
        provision::aws::CASES,
        provision::copy::CASES,
        provision::late::CASES,
        reset::keep::CASES,
        reset::forget::CASES,
        reset::cut::CASES,
        time::wrong::CASES,
        time::ntp::CASES,
        trust::secure_boot::CASES,
        trust::phases::CASES,
        trust::update_signed::CASES,
        update::arbiter::CASES,
        update::every_cut::CASES,
        update::fleet::CASES,
        update::examined::CASES,
        update::returns::CASES,
        update::returns_pods::CASES,
        update::staging::CASES,
        update::oci::CASES,
        update::trial::CASES,
        api::access::CASES,
        api::load::CASES,
        api::logs::CASES,
        api::metrics::CASES,
        api::streams::CASES,
        api::pod_resources::CASES,
        api::stats::CASES,
        api::top::CASES,
        api::node_logs::CASES,
        api::howto::CASES,
        api::tools::CASES,
        api::strangers::CASES,
        lifecycle::static_pods::CASES,
        lifecycle::delays::CASES,
        lifecycle::static_pod_url::CASES,
        lifecycle::crash::CASES,
        lifecycle::churn::CASES,
        lifecycle::shared_shims::CASES,
        lifecycle::hostile_pods::CASES,
        lifecycle::probes::CASES,
        lifecycle::hooks::CASES,
        lifecycle::log_links::CASES,
        lifecycle::nri::CASES,
        net::registries::CASES,
        net::bond::CASES,
        resources::processors::CASES,
        resources::numa::CASES,
        resources::devices::CASES,
        resources::claims::CASES,
        resources::killed_steps::CASES,
        resources::devices_vm::CASES,
        shutdown::bus::CASES,
        shutdown::kexec::CASES,
        shutdown::interrupted::CASES,
        shutdown::cut_short::CASES,
        shutdown::power_button::CASES,
        shutdown::reboot_unreachable::CASES,
        shutdown::hung::CASES,
        shutdown::watchdog::CASES,
        shutdown::elsewhere::CASES,
        defence::images_restart::CASES,
        defence::log_rotation::CASES,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use orlop_harness::case::Level;
    use orlop_harness::cluster::programs::More;
    use orlop_harness::gate::{AREAS, FIXED, NOT_FIXED, Tier, UNTRIED, area, tier};
    use orlop_harness::prepare::needs_more;
    use orlop_harness::workspace::workspace;

    #[test]
    fn names_are_unique_and_carry_an_area() {
        let cases = all();
        let names: BTreeSet<_> = cases.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), cases.len());
        for case in cases {
            assert!(case.name.contains('/') && AREAS.contains(&area(&case)), "{}", case.name);
            assert!(case.expected_s > 0 && !case.about.is_empty(), "{}", case.name);
        }
    }

    #[test]
    fn the_fixed_set_has_every_area_at_every_level_that_the_area_has() {
        let cases = all();
        for name in FIXED.iter().chain(UNTRIED) {
            assert!(cases.iter().any(|case| case.name == *name), "{name} is no case");
        }
        assert!(UNTRIED.iter().all(|name| !FIXED.contains(name)), "every run includes the fixed set");
        let places = |cases: &mut dyn Iterator<Item = &Case>| -> BTreeSet<(&str, Level)> {
            cases.map(|case| (area(case), case.level)).collect()
        };
        let fixed = places(&mut cases.iter().filter(|case| tier(case, &BTreeSet::new()) == Tier::Fixed));
        let wanted = places(&mut cases.iter().filter(|case| !NOT_FIXED.contains(&(area(case), case.level))));
        assert_eq!(fixed, wanted);
        let seconds: u64 = cases.iter().filter(|c| FIXED.contains(&c.name)).map(|c| c.expected_s).sum();
        assert!(seconds < 1250, "one run after another, the fixed set takes {seconds} s");
    }

    #[test]
    fn every_case_of_the_add_ons_has_its_programs_before_it_begins() {
        for case in all().into_iter().filter(|case| area(case) == "addons") {
            assert!(needs_more(&[case]).contains(&More::AddOns), "{}", case.name);
        }
    }

    #[test]
    fn every_area_is_an_area_of_cases() {
        let of_cases: BTreeSet<&str> = all().iter().map(area).collect();
        assert_eq!(of_cases, AREAS.iter().copied().collect());
    }

    #[test]
    fn the_table_of_unsteady_cases_names_cases() {
        let page = std::fs::read_to_string(workspace().join("docs/internals/testing.md")).unwrap();
        let (_, section) = page.split_once("## Unsteady cases").expect("the page has the section");
        let rows = section.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
        let names = rows.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
        for name in names.map(|name| name.trim().trim_matches('`')) {
            assert!(name == "none" || all().iter().any(|case| case.name == name), "{name} is no case");
        }
    }
}
