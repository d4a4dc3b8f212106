//! A program that was started, and its place among those of its kind.
//!
//! Invariant: the place is taken until the program has ended. One that reads from a dead disk ends by no signal: its place stays taken, so
//! such programs are at most as many as there are places, and take none of another kind.

use std::io;
use std::process::{ExitStatus, Stdio};

use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

/// The program; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Program {
    child: Option<Child>,
    place: Option<OwnedSemaphorePermit>,
}

impl Program {
    /// Starts it, with pipes as its output and words that can be compared.
    pub(crate) fn start(mut command: Command, place: OwnedSemaphorePermit) -> io::Result<Program> {
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.kill_on_drop(true).spawn()?;
        Ok(Program { child: Some(child), place: Some(place) })
    }

    /// Its output; once.
    pub(crate) fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.as_mut()?.stdout.take()
    }

    /// Its words about failures; once.
    pub(crate) fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.as_mut()?.stderr.take()
    }

    /// Waits for its end.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await,
            None => Err(io::Error::other("it has been given up")),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let (Some(mut child), place) = (self.child.take(), self.place.take()) else { return };
        // One that has ended needs no signal.
        let _ = child.start_kill();
        // Without a runtime the process ends, and its programs with it.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            // How it ended says nothing any more.
            let _ = child.wait().await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncReadExt as _;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_program_that_is_given_up_gives_its_place_back_when_it_has_ended() {
        let places = Arc::new(Semaphore::new(1));
        let place = places.clone().try_acquire_owned().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo here; exec cat /dev/zero"]);
        let mut program = Program::start(command, place).unwrap();
        let mut stdout = program.stdout().unwrap();
        let mut here = [0; 5];
        stdout.read_exact(&mut here).await.unwrap();
        assert_eq!(&here, b"here\n");
        assert!(program.stdout().is_none() && program.stderr().is_some());
        drop(program);
        assert!(places.try_acquire().is_err(), "its end takes time");
        // Ends when the program is gone.
        let _place = places.acquire().await.unwrap();
    }
}
