//! The feedline command.

fn main() {
    std::process::exit(feedline_cli::main_from(
        std::env::args_os().collect(),
        &feedline_cli::Binary,
    ));
}
