//! Signs EFI programs by systemd-sbsign of the tools tree, and reads whose signatures a file has.
//!
//! systemd-sbsign writes the time into each signature, so two signatures of one program differ: what is reproducible is the build
//! without keys, and the root hash of both.

use super::keys::SecureBootKeys;
use crate::build::{namespaced, read_manifest};
use crate::host::run;
use crate::plan::BuildStep;
use crate::profile::{Dirs, Profile};
use anyhow::{Context, Result, ensure};
use orlop_config::boot_trust::{
    BOOT_FILE_HEAD, BootCertificate, BootSignature, SIGNATURES_BYTES_MAX, SignaturePlace, signature_place,
    signatures,
};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Runs inside `unshare --mount`: $1 the tools tree, $2 the directory of both programs, $3 that of the keys.
const SCRIPT: &str = r#"
set -e
mount --bind "$2" "$1/mnt"
mount --bind "$3" "$1/srv"
exec chroot "$1" /usr/lib/systemd/systemd-sbsign sign --private-key=/srv/db.pem --certificate=/srv/db.crt \
    --output=/mnt/signed.efi /mnt/unsigned.efi
"#;

/// A key, and the program that signs with it.
#[derive(Clone, Debug)]
pub struct BootSigner {
    tools: PathBuf,
    keys: PathBuf,
    certificate: BootCertificate,
    scratch: PathBuf,
}

impl BootSigner {
    /// Signs with the key of db in `keys`, by the tree `tools`. `scratch` is a directory for its files.
    ///
    /// # Errors
    /// The directory of keys has no certificate or no private key of db, or `scratch` cannot be made.
    pub fn new(tools: &Path, keys: &SecureBootKeys, scratch: &Path) -> Result<BootSigner> {
        let certificate = keys.certificate()?;
        // Found here, and not by systemd-sbsign at the end of a build.
        for name in ["db.pem", "db.crt"] {
            let path = keys.path().join(name);
            File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        }
        let absolute =
            |path: &Path| fs::canonicalize(path).with_context(|| format!("finding {}", path.display()));
        fs::create_dir_all(scratch).with_context(|| format!("making {}", scratch.display()))?;
        let (tools, keys, scratch) = (absolute(tools)?, absolute(keys.path())?, absolute(scratch)?);
        Ok(BootSigner { tools, keys, certificate, scratch })
    }

    /// The same, by the tools tree with which a profile was built last.
    ///
    /// # Errors
    /// There is no build, or its tools tree is gone.
    pub fn of_build(
        dirs: &Dirs,
        profile: Profile,
        keys: &SecureBootKeys,
        scratch: &Path,
    ) -> Result<BootSigner> {
        let step = BuildStep::Tools.name();
        let manifest = read_manifest(dirs, profile);
        let key = manifest.as_ref().and_then(|manifest| manifest.steps.get(step)?.get(..16));
        let key = key.with_context(|| format!("there is no build of profile {}", profile.name()))?;
        let tools = dirs.steps().join(format!("{step}-{key}")).join("tools");
        ensure!(tools.is_dir(), "{} is gone: build the image again", tools.display());
        BootSigner::new(&tools, keys, scratch)
    }

    /// The certificate of its key.
    #[must_use]
    pub fn certificate(&self) -> &BootCertificate {
        &self.certificate
    }

    /// The program with a signature.
    ///
    /// # Errors
    /// systemd-sbsign fails, or the result is not signed by this key.
    pub fn sign(&self, program: &[u8]) -> Result<Vec<u8>> {
        let [unsigned, signed] = ["unsigned.efi", "signed.efi"].map(|name| self.scratch.join(name));
        fs::write(&unsigned, program).with_context(|| format!("writing {}", unsigned.display()))?;
        let mut command = namespaced();
        command.args(["sh", "-c", SCRIPT, "sign"]).arg(&self.tools).arg(&self.scratch).arg(&self.keys);
        run::output(&mut command, "signing with systemd-sbsign")?;
        let made = fs::read(&signed).with_context(|| format!("reading {}", signed.display()))?;
        for path in [&unsigned, &signed] {
            fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        }
        let by = program_signatures(&made)?;
        ensure!(
            by.iter().any(|signature| signature.signer == self.certificate),
            "systemd-sbsign has made no signature of {}",
            self.certificate.name()
        );
        Ok(made)
    }
}

/// Whose signatures an EFI program has.
///
/// # Errors
/// It is no EFI program, or names signatures that it does not have.
pub fn program_signatures(program: &[u8]) -> Result<Vec<BootSignature>> {
    read_signatures(|place| {
        let end = place.offset.checked_add(place.length)?;
        let (start, end) = (usize::try_from(place.offset).ok()?, usize::try_from(end).ok()?);
        program.get(start..end.min(program.len())).map(<[u8]>::to_vec)
    })
}

/// The same of a file.
///
/// # Errors
/// The same, and a file that cannot be read.
pub fn file_signatures(path: &Path) -> Result<Vec<BootSignature>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("opening {shown}"))?;
    let bytes = file.metadata().with_context(|| format!("reading {shown}"))?.len();
    let read = |place: SignaturePlace| {
        let length = usize::try_from(place.length.min(bytes.checked_sub(place.offset)?)).ok()?;
        let mut found = vec![0; length];
        file.read_exact_at(&mut found, place.offset).ok().map(|()| found)
    };
    read_signatures(read).with_context(|| shown.to_string())
}

/// `read` gives as many of these bytes as there are.
fn read_signatures(read: impl Fn(SignaturePlace) -> Option<Vec<u8>>) -> Result<Vec<BootSignature>> {
    let head = SignaturePlace { offset: 0, length: BOOT_FILE_HEAD as u64 };
    let head = read(head).context("it cannot be read")?;
    let Some(place) = signature_place(&head)? else { return Ok(Vec::new()) };
    ensure!(place.length <= SIGNATURES_BYTES_MAX, "it names {} bytes of signatures", place.length);
    let table = read(place).context("its signatures are behind its end")?;
    Ok(signatures(&table))
}
