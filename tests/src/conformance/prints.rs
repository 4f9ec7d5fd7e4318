//! Lines that kernels print.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use congruent::{Error, Grid, KernelLine, World};
use congruent_test_kernels::prints::print_lines;

const BLOCKS: u32 = 2;
/// Lines of a block: a few, and more than there is room for.
const FEW: u32 = 5;
const MANY: u32 = 400;

/// Every line comes, in the order of its thread, or is counted as lost.
pub fn prints(world: &mut World) -> Result<(), Error> {
    let lines: Arc<Mutex<Vec<KernelLine>>> = Arc::default();
    let kept = Arc::clone(&lines);
    let lock =
        |lines: &Mutex<Vec<KernelLine>>| std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner));
    // Who waits for a kernel finds its lines, also where another thread prints them and takes its time.
    world.on_print(move |line| {
        if line.text.contains(&format!("of {FEW}:")) {
            thread::sleep(Duration::from_millis(5));
        }
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
    });
    let stream = world.stream()?;
    world.run(&stream, print_lines, Grid::new(BLOCKS, 64), (FEW,))?;
    let few = lock(&lines);
    assert!(few.iter().all(|line| line.kernel.is_some()), "there is room for all: {few:?}");
    assert_eq!(few.len(), (BLOCKS * FEW) as usize, "{few:?}");
    for block in 0..BLOCKS {
        let of_block: Vec<_> = few.iter().filter(|line| line.block == block).collect();
        for (i, line) in of_block.iter().enumerate() {
            let said = format!("{i} of {FEW}: {:?}, -{i}, {}", i as f32 / 2.0 + 0.1, i % 2 == 0);
            assert_eq!((line.pe, line.kernel, line.thread), (world.pe(), Some("print_lines"), 0), "{line}");
            assert_eq!(line.text, said);
        }
    }
    world.run(&stream, print_lines, Grid::new(BLOCKS, 64), (MANY,))?;
    let many = lock(&lines);
    let lost =
        |line: &KernelLine| line.text.split_once(" lines more are lost").and_then(|(lost, _)| lost.parse::<u32>().ok());
    let lost: u32 = many.iter().filter(|line| line.kernel.is_none()).filter_map(lost).sum();
    let came = many.iter().filter(|line| line.kernel.is_some()).count() as u32;
    assert_eq!(came + lost, BLOCKS * MANY);
    assert!(came >= 256, "there is room for as many");
    Ok(world.barrier()?)
}
