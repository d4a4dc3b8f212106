//! The pause container: holds a pod's namespaces, reaps orphans of a shared PID namespace, ends on TERM or INT.
#![no_std]
#![no_main]

mod sys;

#[unsafe(no_mangle)]
fn run() -> ! {
    sys::block_signals();
    loop {
        match sys::wait_signal(0) {
            Some(sys::SIGTERM | sys::SIGINT) => sys::exit(0),
            _ => sys::reap(),
        }
    }
}
