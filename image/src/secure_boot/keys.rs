//! The directory of the firmware's keys.
//!
//! ```text
//! <directory>/PK.pem  KEK.pem  db.pem      private keys, mode 0600
//!             PK.crt  KEK.crt  db.crt      certificates, PEM
//!             PK.cer  KEK.cer  db.cer      the same, DER: for menus of firmware and for clouds
//!             PK.auth KEK.auth db.auth     their enrolment, as the loader reads it
//! ```
//! PK is the machine's owner and signs changes of KEK, KEK signs changes of db, db signs what is started. Only db is needed to build.

use super::auth::VariableWrite;
use crate::format::digest;
use crate::host::{run, tools};
use crate::profile::Dirs;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use orlop_config::boot_trust::BootCertificate;
use orlop_config::release::UtcSecond;
use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The keys, each with the one that signs its enrolment.
const KEYS: [(&str, &str); 3] = [("PK", "PK"), ("KEK", "PK"), ("db", "KEK")];
/// Validity of a certificate, days. Firmware does not look at it.
const DAYS: &str = "7300";

/// Arguments of `orlop-image secure-boot-keys`.
#[derive(Args, Debug)]
pub struct SecureBootKeysArgs {
    /// Directory of the keys [default: $ORLOP_CACHE/secure-boot]
    #[arg(long)]
    keys: Option<PathBuf>,
}

/// When the boot loader enrols the image's keys in a firmware in setup mode (`secure-boot-enroll`, loader.conf(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SecureBootEnroll {
    /// By itself in a virtual machine; elsewhere a person chooses it in the loader's menu.
    #[default]
    IfSafe,
    /// By itself on every machine: for a stick that enrols. A graphics card whose firmware another key has signed stays dark.
    Force,
    /// A person chooses it in the loader's menu.
    Manual,
}

impl SecureBootEnroll {
    /// As loader.conf(5) has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SecureBootEnroll::IfSafe => "if-safe",
            SecureBootEnroll::Force => "force",
            SecureBootEnroll::Manual => "manual",
        }
    }
}

/// A file below `loader/keys/auto` of an ESP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolmentFile {
    /// `PK.auth`, `KEK.auth` or `db.auth`.
    pub name: String,
    /// What it holds.
    pub content: Vec<u8>,
}

/// A directory of keys.
#[derive(Clone, Debug)]
pub struct SecureBootKeys {
    path: PathBuf,
}

/// Runs `orlop-image secure-boot-keys`.
///
/// # Errors
/// There are keys already, or openssl cannot make them.
pub fn secure_boot_keys(dirs: &Dirs, args: &SecureBootKeysArgs) -> Result<()> {
    fs::create_dir_all(&dirs.cache).with_context(|| format!("making {}", dirs.cache.display()))?;
    tools::ensure(tools::SECURE_BOOT, &dirs.cache.join("secure-boot.log"))?;
    let path = args.keys.clone().unwrap_or_else(|| dirs.cache.join("secure-boot"));
    let keys = SecureBootKeys::create(&path)?;
    println!("{}", path.display());
    for (name, _) in KEYS {
        println!("  {name}: {}", keys.certificate_of(name)?.name());
    }
    Ok(())
}

impl SecureBootKeys {
    /// The directory at `path`.
    #[must_use]
    pub fn new(path: &Path) -> SecureBootKeys {
        SecureBootKeys { path: path.to_owned() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes all keys, RSA of 2048 bits, which every firmware knows. The directory appears when it is whole.
    ///
    /// # Errors
    /// Something is there already, or openssl cannot make them.
    pub fn create(path: &Path) -> Result<SecureBootKeys> {
        let shown = path.display();
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{shown} has keys already; a machine that knows them starts nothing of others");
        }
        let mut name = path.file_name().with_context(|| format!("{shown} has no name"))?.to_owned();
        name.push(".partial");
        let partial = SecureBootKeys::new(&path.with_file_name(name));
        match fs::remove_dir_all(&partial.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("removing {}", partial.path.display()));
            }
            _ => {}
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&partial.path)
            .with_context(|| format!("making {}", partial.path.display()))?;
        let (mark, at) = (random_mark()?, now()?);
        for (name, _) in KEYS {
            partial.make(name, &mark)?;
        }
        for (name, signer) in KEYS {
            partial.write_enrolment(name, signer, at)?;
        }
        fs::rename(&partial.path, path).with_context(|| format!("keeping {shown}"))?;
        Ok(SecureBootKeys::new(path))
    }

    fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.path.join(format!("{name}.{kind}"))
    }

    fn make(&self, name: &str, mark: &str) -> Result<()> {
        let mut request = openssl("req");
        request.args(["-x509", "-newkey", "rsa:2048", "-nodes", "-sha256", "-days", DAYS]);
        request.arg("-subj").arg(format!("/CN=Orlop {name} {mark}"));
        request.arg("-keyout").arg(self.file(name, "pem")).arg("-out").arg(self.file(name, "crt"));
        run::output(&mut request, "making a key with openssl")?;
        let mut certificate = openssl("x509");
        certificate.args(["-outform", "DER", "-in"]).arg(self.file(name, "crt"));
        let der = run::output(&mut certificate, "reading a certificate with openssl")?;
        let path = self.file(name, "cer");
        fs::write(&path, der).with_context(|| format!("writing {}", path.display()))
    }

    fn write_enrolment(&self, name: &'static str, signer: &str, at: UtcSecond) -> Result<()> {
        let certificate = self.read(name, "cer")?;
        let write = VariableWrite::new(name, &certificate, at)?;
        let mut sign = openssl("smime");
        sign.args(["-sign", "-binary", "-noattr", "-md", "sha256", "-outform", "DER", "-signer"]);
        sign.arg(self.file(signer, "crt")).arg("-inkey").arg(self.file(signer, "pem"));
        let signature = run::filter(&mut sign, "signing with openssl", &write.signed_bytes())?;
        let path = self.file(name, "auth");
        fs::write(&path, write.file(&signature)?).with_context(|| format!("writing {}", path.display()))
    }

    fn read(&self, name: &str, kind: &str) -> Result<Vec<u8>> {
        let path = self.file(name, kind);
        fs::read(&path).with_context(|| {
            format!("reading {}: `orlop-image secure-boot-keys` makes such a directory", path.display())
        })
    }

    fn certificate_of(&self, name: &str) -> Result<BootCertificate> {
        let der = self.read(name, "cer")?;
        let path = self.file(name, "cer");
        BootCertificate::parse(&der).with_context(|| format!("{} is no certificate", path.display()))
    }

    /// The certificate of db, whose key signs what is started.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn certificate(&self) -> Result<BootCertificate> {
        self.certificate_of("db")
    }

    /// The files with which a loader enrols the keys.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn enrolment(&self) -> Result<Vec<EnrolmentFile>> {
        let file = |(name, _): (&str, &str)| -> Result<EnrolmentFile> {
            Ok(EnrolmentFile { name: format!("{name}.auth"), content: self.read(name, "auth")? })
        };
        KEYS.into_iter().map(file).collect()
    }

    /// A digest of all that gets into an image: the certificate and the enrolment.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn digest(&self) -> Result<String> {
        let mut all = self.read("db", "cer")?;
        for file in self.enrolment()? {
            all.extend(file.content);
        }
        Ok(digest::bytes(&all))
    }
}

fn openssl(what: &str) -> Command {
    let mut command = Command::new("openssl");
    command.arg(what);
    command
}

/// Tells these keys from others by their names, which people compare.
fn random_mark() -> Result<String> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("reading /dev/urandom")?;
    Ok(hex::encode(bytes))
}

fn now() -> Result<UtcSecond> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(UtcSecond::new(since.as_secs()))
}
