//! The `sluice` command: parse, run, exit code.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    sluicefs::cli::main(std::env::args_os().collect())
}
