//! The sample container of `cargo boot`: says where it runs, then a line every ten seconds until it is stopped.
#![no_std]
#![no_main]

mod sys;

#[unsafe(no_mangle)]
fn run() -> ! {
    sys::block_signals();
    let names = sys::uname();
    sys::print(b"Hello from a pod on Orlop!\n");
    for (label, index) in [(&b"host name "[..], 1), (b"kernel    ", 2)] {
        sys::print(label);
        sys::print(field(&names, index));
        sys::print(b"\n");
    }
    loop {
        match sys::wait_signal(10) {
            Some(sys::SIGTERM | sys::SIGINT) => {
                sys::print(b"Goodbye.\n");
                sys::exit(0);
            }
            Some(_) => sys::reap(),
            None => sys::print(b"still here\n"),
        }
    }
}

// Field of struct utsname: 65 bytes, NUL-terminated.
fn field(names: &[u8; 390], index: usize) -> &[u8] {
    let field = names.get(index * 65..(index + 1) * 65).unwrap_or(&[]);
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    field.get(..end).unwrap_or(&[])
}
