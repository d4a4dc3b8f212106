//! Inputs of commands (CRI Exec) that containerd waits for although no process will ever read them.
//!
//! ```text
//! client ─► containerd ─► FIFO <exec>-stdin ─► shim ─► pipe ─► the command
//! ```
//! containerd's shim keeps the reading end of a command's standard input open itself (go-runc's `pipeIO.CloseAfterStart` closes
//! those of the outputs only). A command that ends without reading all of it leaves the shim writing into a full pipe for ever,
//! containerd writing into a full FIFO, and the client without the exit code. What is taken out of the FIFO lets containerd's
//! write end; its own end of the stream follows, and the exit code with it.
//!
//! In: the runtime's socket, a container. Out: its commands with inputs; what one FIFO held. Invariants: an input is only over
//! if the command has ended and both its outputs have no reader any more, which is when containerd reads no more of the client
//! either (`internal/cri/io/exec_io.go`); every other FIFO is left alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::containerd_state;
use crate::files::FilesError;
use crate::volumes::device::entries;

const INPUT: &str = "-stdin";
const OUTPUTS: [&str; 2] = ["-stdout", "-stderr"];
/// A FIFO holds this many bytes.
const TAKEN_AT_ONCE: usize = 64 * 1024;

/// The input of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its FIFO.
    pub path: PathBuf,
    /// No process will read it.
    pub is_over: bool,
}

/// The inputs of the commands that run in a container, or ran. A runtime that is not containerd has none.
///
/// # Errors
/// A directory that cannot be read.
pub fn of_container(socket: &Path, container: &str) -> Result<Vec<Input>, FilesError> {
    let (io, bundle) =
        (containerd_state::fifos(socket, container), containerd_state::bundles(socket).join(container));
    let mut found = Vec::new();
    for directory in entries(&io)? {
        let directory = io.join(directory);
        for name in entries(&directory)? {
            // The container's own input has no process number there, and is never over.
            let Some(exec) = name.strip_suffix(INPUT) else { continue };
            let outputs = OUTPUTS.map(|end| directory.join(format!("{exec}{end}")));
            let is_over =
                has_ended(&bundle.join(format!("{exec}.pid"))) && outputs.iter().all(|o| is_unread(o));
            found.push(Input { path: directory.join(&name), is_over });
        }
    }
    Ok(found)
}

/// The process of this number is gone. Another one may have the number by now: then it looks alive.
fn has_ended(number: &Path) -> bool {
    let text = fs::read_to_string(number).unwrap_or_default();
    let pid = text.trim().parse::<u32>().ok().filter(|pid| *pid > 0);
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// The FIFO has no reader, or is not there: a terminal has one output.
fn is_unread(fifo: &Path) -> bool {
    let opened = OpenOptions::new().write(true).custom_flags(no_wait()).open(fifo);
    opened.is_err_and(|e| e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(Errno::ENXIO as i32))
}

fn no_wait() -> i32 {
    (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits()
}

/// Takes out what a FIFO holds, once; the number of bytes.
///
/// # Errors
/// It cannot be opened or read. One that is gone holds nothing.
pub fn take(fifo: &Path) -> Result<usize, FilesError> {
    let mut open = match OpenOptions::new().read(true).custom_flags(no_wait()).open(fifo) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(FilesError::at("open", fifo))?,
    };
    let mut bytes = vec![0; TAKEN_AT_ONCE];
    match read(&mut open, &mut bytes) {
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
        taken => taken.map_err(FilesError::at("read", fifo)),
    }
}

fn read(file: &mut File, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(bytes) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use nix::sys::stat::Mode;

    use super::*;

    const SOCKET: &str = "containerd.sock";

    struct Exec {
        dir: tempfile::TempDir,
        fifos: PathBuf,
    }

    impl Exec {
        /// A command with three FIFOs in container `c`.
        fn new() -> Exec {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join(SOCKET);
            let (fifos, bundle) = (
                containerd_state::fifos(&socket, "c").join("123"),
                containerd_state::bundles(&socket).join("c"),
            );
            for directory in [&fifos, &bundle] {
                fs::create_dir_all(directory).unwrap();
            }
            for end in [INPUT, OUTPUTS[0], OUTPUTS[1]] {
                nix::unistd::mkfifo(&fifos.join(format!("e{end}")), Mode::S_IRWXU).unwrap();
            }
            Exec { dir, fifos }
        }

        fn pid(&self, text: &str) {
            fs::write(containerd_state::bundles(&self.dir.path().join(SOCKET)).join("c/e.pid"), text)
                .unwrap();
        }

        fn is_over(&self) -> bool {
            let found = of_container(&self.dir.path().join(SOCKET), "c").unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].path, self.fifos.join("e-stdin"));
            found[0].is_over
        }

        fn reader(&self, end: &str) -> File {
            let path = self.fifos.join(format!("e{end}"));
            OpenOptions::new().read(true).custom_flags(no_wait()).open(path).unwrap()
        }
    }

    /// The number of a process that has ended.
    fn ended() -> String {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id().to_string()
    }

    #[test]
    fn an_input_is_over_with_its_command_and_both_outputs() {
        let exec = Exec::new();
        assert!(!exec.is_over(), "it is not known which process it is");
        for nonsense in ["", "0", "-1", "x"] {
            exec.pid(nonsense);
            assert!(!exec.is_over(), "{nonsense:?}");
        }
        exec.pid(&std::process::id().to_string());
        assert!(!exec.is_over(), "the command runs");
        exec.pid(&ended());
        for end in OUTPUTS {
            let reader = exec.reader(end);
            assert!(!exec.is_over(), "somebody reads {end}: a child of the command may write there");
            drop(reader);
        }
        assert!(exec.is_over());
        fs::remove_file(exec.fifos.join("e-stderr")).unwrap();
        assert!(exec.is_over(), "a terminal has one output");
    }

    #[test]
    fn a_writer_that_waits_for_room_has_it() {
        let exec = Exec::new();
        let path = exec.fifos.join("e-stdin");
        // As the shim holds it: it reads no more.
        let _shim = exec.reader(INPUT);
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        let mut taken = 0;
        std::thread::scope(|scope| {
            let writes = scope.spawn(move || writer.write_all(&[b'y'; TAKEN_AT_ONCE + 1000]));
            while !writes.is_finished() || taken < TAKEN_AT_ONCE + 1000 {
                taken += take(&path).unwrap();
            }
            writes.join().unwrap().unwrap();
        });
        assert_eq!((taken, take(&path).unwrap()), (TAKEN_AT_ONCE + 1000, 0));
        fs::remove_file(&path).unwrap();
        assert_eq!(take(&path).unwrap(), 0);
    }

    #[test]
    fn another_runtime_has_no_such_inputs() {
        let dir = tempfile::tempdir().unwrap();
        assert!(of_container(&dir.path().join("crio.sock"), "c").unwrap().is_empty());
    }
}
