//! Makes keys, certificates, manifests and NodeConfigs of a control plane, offline.
//!
//! ```text
//! command line ─► ClusterPlan ─► Authorities ─► certificates ─┬─► static pods, kubeconfigs ─► NodeConfigs ─► files
//!                                                             └─► first objects ───────────────┘
//! ```
//! In: a command line, the time, random numbers; with `--renew` the authorities of an earlier output. Out: a directory. Invariant: all
//! but keys, certificates and the token is a function of the command line and the time. Specification: docs/howto/control-plane.md.

pub(crate) mod args;
mod documents;
pub(crate) mod failure;
mod kubeconfig;
mod manifests;
mod objects;
mod output;
mod pki;
pub(crate) mod plan;
mod ranges;
mod renew;
#[cfg(test)]
mod tests;

use jiff::Timestamp;

use self::args::{ControlplaneVerb, GenArgs};
use self::failure::ControlplaneError;
use self::objects::ObjectWords;
use self::output::OutputFile;
use self::pki::{Authorities, Authority, token};
use self::plan::ClusterPlan;
use crate::commands::{Verdict, write};
use crate::failure::CtlError;

/// Files of authorities, below the output's directory and without their suffixes, in the order of [`pki::COMMON_NAMES`].
const AUTHORITY_FILES: [&str; 3] = ["pki/ca", "pki/etcd/ca", "pki/front-proxy-ca"];
/// Key of service accounts' tokens.
const SERVICE_ACCOUNT_FILE: &str = "pki/sa.key";
/// Its public half.
const SERVICE_ACCOUNT_PUBLIC_FILE: &str = "pki/sa.pub";

/// Runs a verb: no node is asked.
pub(crate) fn run(verb: &ControlplaneVerb) -> Result<Verdict, CtlError> {
    let ControlplaneVerb::Gen(args) = verb;
    let text = generate(args, Timestamp::now().as_second())?;
    write(&text)?;
    Ok(Verdict::Fine)
}

/// Makes the files, writes them, and tells what they are.
fn generate(args: &GenArgs, now: i64) -> Result<String, ControlplaneError> {
    let plan = args.plan(now).map_err(ControlplaneError::Usage)?;
    let authorities = match &args.renew {
        Some(dir) => renew::load(dir, now)?,
        None => Authorities::make(&plan)?,
    };
    let files = files(&plan, &authorities, &token()?)?;
    output::write(&args.out, &files)?;
    Ok(summary(&plan, &authorities, args, &files))
}

/// The files of the output.
fn files(
    plan: &ClusterPlan,
    authorities: &Authorities,
    token: &str,
) -> Result<Vec<OutputFile>, ControlplaneError> {
    let authority = &authorities.cluster.certificate;
    let server = plan.endpoint.url();
    let words = ObjectWords { server: &server, authority, token, token_ends: plan.token_ends };
    let objects = objects::render(&objects::objects(&words));
    let [admin, super_admin] = authorities.administrators(plan)?;
    let mut files = authority_files(authorities);
    for (path, user, credentials) in [
        ("admin.conf", "kubernetes-admin", &admin),
        ("super-admin.conf", "kubernetes-super-admin", &super_admin),
    ] {
        files.push(OutputFile::secret(path, kubeconfig::render(&server, authority, user, credentials)));
    }
    for node in &plan.nodes {
        let certificates = authorities.node(plan, node)?;
        let document = documents::control_plane(plan, node, authorities, &certificates, &objects);
        let comment =
            format!("Control plane on {}. It holds private keys: give it to this node alone.", node.name);
        files.push(OutputFile::secret(format!("{}.yaml", node.name), documents::render(&comment, &document)));
    }
    let comment = "Workers. It holds a token that lets a machine join.";
    let worker = documents::render(comment, &documents::worker(plan, authority, token));
    files.push(OutputFile::secret("worker.yaml", worker));
    files.push(OutputFile::secret("bootstrap.yaml", objects));
    Ok(files)
}

/// What `--renew` reads.
fn authority_files(authorities: &Authorities) -> Vec<OutputFile> {
    let all = [&authorities.cluster, &authorities.etcd, &authorities.front_proxy];
    let mut files = Vec::new();
    for (name, authority) in AUTHORITY_FILES.iter().zip(all) {
        let Authority { certificate, key, .. } = authority;
        files.push(OutputFile::public(format!("{name}.crt"), certificate.as_str()));
        files.push(OutputFile::secret(format!("{name}.key"), key.as_str()));
    }
    files.push(OutputFile::secret(SERVICE_ACCOUNT_FILE, authorities.service_account.as_str()));
    files.push(OutputFile::public(SERVICE_ACCOUNT_PUBLIC_FILE, authorities.service_account_public.as_str()));
    files
}

/// What was made, how long it is good, and what comes next.
fn summary(plan: &ClusterPlan, authorities: &Authorities, args: &GenArgs, files: &[OutputFile]) -> String {
    // Beyond the calendar there is no date.
    let date = |seconds: i64| {
        Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).strftime("%Y-%m-%d").to_string()
    };
    let all = [&authorities.cluster, &authorities.etcd, &authorities.front_proxy];
    let authorities_end = all.iter().map(|authority| authority.ends).min().unwrap_or(plan.authorities_end);
    let dir = args.out.display();
    let mut lines: Vec<String> = files.iter().map(|file| format!("{dir}/{}", file.path)).collect();
    lines.push(format!(
        "certificates are good until {}, authorities until {}, the token until {}",
        date(plan.ends.min(authorities_end)),
        date(authorities_end),
        date(plan.token_ends)
    ));
    for node in &plan.nodes {
        lines.push(format!("first boot of {0}: {dir}/{0}.yaml is its NodeConfig", node.name));
    }
    if plan.endpoint.is_loopback() {
        lines.push("the endpoint is a loopback: workers on other machines do not reach it".to_owned());
    }
    lines.push(format!("then: kubectl --kubeconfig {dir}/admin.conf get nodes"));
    lines.join("\n") + "\n"
}
