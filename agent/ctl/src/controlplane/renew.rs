//! Authorities of an earlier output, for new certificates.
//!
//! Invariant: only what `orlopctl controlplane gen` made is taken, whole, and with its own keys.

use std::fs;
use std::path::Path;

use super::failure::ControlplaneError;
use super::pki::{Authorities, Authority, COMMON_NAMES, public_half};
use super::{AUTHORITY_FILES, SERVICE_ACCOUNT_FILE};

/// Reads the authorities and the key of service accounts below a directory. `now` is in seconds since 1970.
///
/// # Errors
/// A file is missing, is another program's, or an authority has ended or not begun.
pub(super) fn load(dir: &Path, now: i64) -> Result<Authorities, ControlplaneError> {
    let [cluster, etcd, front_proxy] = AUTHORITY_FILES;
    let [cluster_name, etcd_name, front_proxy_name] = COMMON_NAMES;
    let service_account = read(dir, SERVICE_ACCOUNT_FILE)?;
    let service_account_public =
        public_half(&service_account).map_err(|why| failed(dir, SERVICE_ACCOUNT_FILE, why))?;
    Ok(Authorities {
        cluster: authority(dir, cluster, cluster_name, now)?,
        etcd: authority(dir, etcd, etcd_name, now)?,
        front_proxy: authority(dir, front_proxy, front_proxy_name, now)?,
        service_account,
        service_account_public,
    })
}

fn authority(dir: &Path, name: &str, common_name: &str, now: i64) -> Result<Authority, ControlplaneError> {
    let file = format!("{name}.crt");
    let (certificate, key) = (read(dir, &file)?, read(dir, &format!("{name}.key"))?);
    let authority = Authority::load(common_name, certificate, key).map_err(|why| failed(dir, &file, why))?;
    if authority.ends <= now {
        let why = "this authority has ended: make a new control plane without --renew".to_owned();
        return Err(failed(dir, &file, why));
    }
    if authority.begins > now {
        let why = "this authority has not begun yet: is this machine's clock behind?".to_owned();
        return Err(failed(dir, &file, why));
    }
    Ok(authority)
}

fn read(dir: &Path, name: &str) -> Result<String, ControlplaneError> {
    fs::read_to_string(dir.join(name)).map_err(|why| failed(dir, name, why.to_string()))
}

fn failed(dir: &Path, name: &str, why: String) -> ControlplaneError {
    ControlplaneError::Renew { path: dir.join(name), why }
}
