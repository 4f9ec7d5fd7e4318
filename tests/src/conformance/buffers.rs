//! Memory of a PE's own: kernels divide it as their parameters say, launches that use the same come one after the other, and it is
//! there until the last one is complete.

use std::fmt::Debug;
use std::iter::zip;

use congruent::device::{Kernel, KernelArg, Pe, Pod, Signal, Slice, SliceMut};
use congruent::{AccessError, Buffer, Chunked, Error, Grid, LaunchError, Packed, Tiled, World};
use congruent_test_kernels::buffers::{
    add_late, axpy, axpy_in_packs, axpy_of, number_rows, number_tiles, read_late, scatter, settled, sum_in_packs,
    sums_of_chunks, table, tell_addresses, volume,
};

use super::limit::{at_most, times};

/// Grids whose threads are fewer than the elements, and more.
const GRIDS: [Grid; 3] = [Grid::one(1), Grid::new(2, 48), Grid::new(3, 128)];

/// Buffers in kernels, on streams and in graphs.
pub fn buffers(world: &mut World) -> Result<(), Error> {
    host_access(world)?;
    for grid in GRIDS {
        by_element(world, grid)?;
        in_parts(world, grid)?;
        anywhere(world, grid)?;
        in_packs(world, grid)?;
        in_tiles(world, grid)?;
    }
    of_each_type(world)?;
    settled_memory(world)?;
    tiles(world)?;
    tiles_of_a_volume(world)?;
    one_after_the_other(world)?;
    dropped_meanwhile(world)?;
    in_a_graph(world)?;
    events(world)?;
    copies(world)?;
    to_the_host(world)?;
    occupancy(world)?;
    addresses(world)
}

/// A buffer with these elements.
fn buffer<T: Pod>(world: &World, values: impl IntoIterator<Item = T>) -> Result<Buffer<T>, Error> {
    let values: Vec<T> = values.into_iter().collect();
    let mut buffer = world.buffer(values.len())?;
    buffer.write(0, &values)?;
    Ok(buffer)
}

/// Each PE has as many elements as it likes.
fn host_access(world: &World) -> Result<(), Error> {
    let len = 10 + world.pe().index();
    let mut numbers = world.buffer::<u32>(len)?;
    assert_eq!(numbers.to_vec()?, vec![0; len], "fresh memory is zeroed");
    numbers.fill(7)?;
    numbers.write(3, &[1, 2])?;
    let mut three = [0; 3];
    numbers.read(2, &mut three)?;
    assert_eq!(three, [7, 1, 2]);
    let refused = numbers.write(len - 1, &[1, 2]);
    assert_eq!(refused, Err(AccessError::OutOfBounds { start: len - 1, end: len + 1, len }));
    assert!(numbers.slice(1..len + 1).is_err() && numbers.split_at_mut(len + 1).is_err());
    let none = world.buffer::<u64>(0)?;
    assert_eq!((none.to_vec()?, none.is_empty()), (vec![], true));
    Ok(())
}

fn by_element(world: &World, grid: Grid) -> Result<(), Error> {
    let stream = world.stream()?;
    for len in [0, 1, 5, at_most(1003)] {
        let (x, mut y) = (buffer(world, (0..len + 2).map(|i| i as f32))?, buffer(world, vec![10.0; len])?);
        world.launch(&stream, axpy, grid, (2.0, &x, &mut y))?;
        world.launch(&stream, axpy, grid, (1.0, x.slice(1..=len)?, &mut y))?;
        let expected: Vec<_> = (0..len).map(|i| 10.0 + 2.0 * i as f32 + (i + 1) as f32).collect();
        assert_eq!(y.to_vec()?, expected, "{len} elements, {grid:?}");
    }
    let refused = world.launch(&stream, sums_of_chunks, grid, (Chunked::new(&mut world.buffer(8)?, 0),));
    assert!(matches!(refused, Err(LaunchError::EmptyParts { kernel: "sums_of_chunks" })), "{refused:?}");
    Ok(())
}

/// Sixteen bytes at a time: what begins elsewhere or is not whole is refused, or read one by one.
fn in_packs(world: &mut World, grid: Grid) -> Result<(), Error> {
    let (stream, len) = (world.stream()?, 4 * at_most(301));
    let (x, mut y) = (buffer(world, (0..len).map(|i| i as f32))?, world.buffer(len)?);
    world.launch(&stream, axpy_in_packs, grid, (3.0, Packed::new(&x), Packed::new(&mut y)))?;
    assert_eq!(y.to_vec()?, Vec::from_iter((0..len).map(|i| 3.0 * i as f32)));
    for (part, fits) in [(0..len, true), (4..len, true), (0..0, true), (0..len - 1, false), (1..len - 3, false)] {
        let (packs, mut to) = (Packed::new(x.slice(part.clone())?), world.buffer(part.len() / 4 * 4)?);
        let launched = world.launch(&stream, axpy_in_packs, grid, (1.0, packs, Packed::new(&mut to)));
        match launched {
            Ok(()) => assert!(fits, "{part:?}"),
            Err(LaunchError::Packs { kernel: "axpy_in_packs", len, in_one: 4 }) => {
                assert_eq!((fits, len), (false, part.len()))
            }
            Err(other) => return Err(other.into()),
        }
    }
    let (numbers, told) = (buffer(world, 0..len as u32)?, world.alloc::<u64>(2)?);
    for (part, packs) in [(0..len, len / 4), (4..len - 1, len / 4 - 2), (3..len, 0), (0..3, 0)] {
        world.run(&stream, sum_in_packs, Grid { blocks: 1, ..grid }, (numbers.slice(part.clone())?, told.view()))?;
        assert_eq!(told.to_vec()?, [part.clone().sum::<usize>() as u64, packs as u64], "{part:?}");
    }
    Ok(())
}

/// A kernel of several types has an entry for each, and its launch bounds hold.
fn of_each_type(world: &World) -> Result<(), Error> {
    fn one<T>(world: &World, [a, x, y, sum]: [T; 4]) -> Result<(), Error>
    where
        axpy_of<T>: Kernel<Args = (T, Slice<T>, SliceMut<T>)>,
        T: Pod + KernelArg + PartialEq + Debug,
    {
        let (stream, len) = (world.stream()?, at_most(77));
        let (x, mut to) = (buffer(world, vec![x; len])?, buffer(world, vec![y; len])?);
        world.launch(&stream, axpy_of::<T>(), Grid::new(2, 48), (a, &x, &mut to))?;
        assert_eq!(to.to_vec()?, vec![sum; len], "{}", axpy_of::<T>::NAME);
        let refused = world.launch(&stream, axpy_of::<T>(), Grid::one(160), (a, &x, &mut to));
        assert!(matches!(refused, Err(LaunchError::TooManyThreads { asked: 160, fits: 128, .. })), "{refused:?}");
        Ok(())
    }
    one(world, [0.5, 3.0, 1e300, 1e300_f64])?;
    one(world, [2, 5, 1_u32 << 31, (1 << 31) + 10])?;
    one(world, [-2, 1 << 40, 7_i64, 7 - (2 << 40)])
}

/// Symmetric memory in the parts that buffers have.
fn settled_memory(world: &mut World) -> Result<(), Error> {
    let (stream, len, chunk, row) = (world.stream()?, at_most(203), 5, 8);
    let numbers = world.alloc::<u32>(len)?;
    numbers.write(0, &Vec::from_iter(0..len as u32))?;
    world.run(&stream, settled, Grid::one(64), (numbers.view(), 1000, chunk as u64, row as u64))?;
    let mut expected = Vec::from_iter(1000..1000 + len as u32);
    expected.chunks_mut(chunk).for_each(<[u32]>::reverse);
    zip(expected.chunks_mut(row), 0..).for_each(|(row, r)| row[0] = r);
    assert_eq!(numbers.to_vec()?, expected);
    Ok(())
}

/// A grid of two dimensions.
fn tiles(world: &World) -> Result<(), Error> {
    // More blocks than a kernel that waits may have.
    let (stream, rows, columns) = (world.stream()?, 34, 67);
    let mut to = buffer(world, vec![u32::MAX; rows * columns])?;
    assert!(!world.occupancy(table, 32, 0)?.waits);
    world.launch(&stream, table, Grid::tiled([columns, rows], [8, 4], 32), (&mut to, rows as u64, columns as u64))?;
    let expected = (0..rows).flat_map(|i| (0..columns).map(move |j| (1000 * i + j) as u32));
    assert_eq!(to.to_vec()?, Vec::from_iter(expected));
    Ok(())
}

/// A grid of three dimensions, of which none is a multiple of its tiles.
fn tiles_of_a_volume(world: &World) -> Result<(), Error> {
    let (stream, layers, rows, columns) = (world.stream()?, 5, 7, 9);
    let mut to = buffer(world, vec![u32::MAX; layers * rows * columns])?;
    let grid = Grid::tiled([columns, rows, layers], [4, 3, 2], 24);
    assert_eq!(grid.blocks, 3 * 3 * 3);
    world.launch(&stream, volume, grid, (&mut to, layers as u64, rows as u64, columns as u64))?;
    let place = |at: usize| (at / (rows * columns), at / columns % rows, at % columns);
    let expected = (0..to.len()).map(place).map(|(i, j, k)| (10_000 * i + 100 * j + k) as u32);
    assert_eq!(to.to_vec()?, Vec::from_iter(expected));
    Ok(())
}

fn in_parts(world: &World, grid: Grid) -> Result<(), Error> {
    let (stream, len, size) = (world.stream()?, at_most(1001), 7);
    let mut chunks = buffer(world, 0..len as u64)?;
    world.launch(&stream, sums_of_chunks, grid, (chunks.chunks_mut(size),))?;
    for (c, (found, had)) in chunks.to_vec()?.chunks(size).zip(Vec::from_iter(0..len as u64).chunks(size)).enumerate() {
        let mut expected = had.to_vec();
        if let [first, .., last] = &mut expected[..] {
            (*first, *last) = (c as u64, had.iter().sum());
        }
        assert_eq!(found, expected, "chunk {c}, {grid:?}");
    }
    let (told, pe) = (&mut world.buffer::<u64>(1)?, world.pe().raw());
    assert_eq!((told.len(), pe), (1, world.pe().raw()));
    Ok(())
}

/// Tiles of a table are each one block's, and each element has one thread that writes it, also where the last tiles are smaller.
fn in_tiles(world: &mut World, grid: Grid) -> Result<(), Error> {
    let (stream, told) = (world.stream()?, world.alloc::<u64>(2)?);
    let shapes =
        [[1, 1, 1, 1], [7, 9, 3, 4], [6, 8, 3, 4], [5, 3, usize::MAX, 2], [2, 11, 1, usize::MAX], [0, 4, 2, 2]];
    for [rows, columns, height, width] in shapes {
        let mut numbers = world.buffer::<u64>(rows * columns)?;
        for _ in 0..2 {
            let tiled = Tiled::new(&mut numbers, columns, [height, width]);
            world.run(&stream, number_tiles, grid, (tiled, told.view()))?;
        }
        let size = |at: usize, tile: usize, all: usize| tile.min(all - at / tile * tile);
        let element = |at: usize| {
            let (i, j) = (at / columns, at % columns);
            2 * (i * 1_000_000 + j * 1000 + size(i, height, rows) * size(j, width, columns)) as u64
        };
        let expected = Vec::from_iter((0..rows * columns).map(element));
        assert_eq!(numbers.to_vec()?, expected, "{rows} rows of {columns} in tiles of {height} by {width}, {grid:?}");
        let counts = [rows.div_ceil(height) * 1000 + columns.div_ceil(width), rows * 1000 + columns];
        assert_eq!(told.to_vec()?, counts.map(|count| count as u64));
    }
    // A part of a buffer, in a grid of a block for each tile: its neighbours stay.
    let mut some = buffer(world, vec![5; 2 + 4 * 6 + 3])?;
    let whole = Grid { threads: grid.threads, ..Grid::tiled([6, 4], [4, 3], 0) };
    let tiled = Tiled::new(some.slice_mut(2..26)?, 6, [3, 4]);
    world.run(&stream, number_tiles, whole, (tiled, told.view()))?;
    let found = some.to_vec()?;
    assert_eq!((&found[..2], &found[26..]), (&[5; 2][..], &[5; 3][..]));
    assert_eq!([found[2], found[25]], [5 + 12, 5 + 3_005_002]);
    // Without elements there is no table; and rows are whole.
    let mut numbers = world.buffer::<u64>(10)?;
    for (columns, tile) in [(0, [1, 1]), (5, [0, 1]), (5, [1, 0])] {
        let refused = world.launch(&stream, number_tiles, grid, (Tiled::new(&mut numbers, columns, tile), told.view()));
        assert!(matches!(refused, Err(LaunchError::EmptyParts { kernel: "number_tiles" })), "{refused:?}");
    }
    let refused = world.launch(&stream, number_tiles, grid, (Tiled::new(&mut numbers, 4, [2, 2]), told.view()));
    let Err(LaunchError::PartialRow { kernel: "number_tiles", len: 10, columns: 4 }) = refused else {
        panic!("{refused:?}")
    };
    Ok(())
}

/// Any thread stores anywhere; the two halves of one buffer are two arguments.
fn anywhere(world: &mut World, grid: Grid) -> Result<(), Error> {
    let (stream, len) = (world.stream()?, at_most(500));
    let to = buffer(world, (0..len as u32).rev())?;
    let (from, mut into) = (buffer(world, 100..100 + len as u32)?, world.buffer::<u32>(len + 3)?);
    let [head, _rest] = into.split_at_mut(len)?;
    world.launch(&stream, scatter, grid, (head, &to, &from))?;
    let expected: Vec<_> = (0..len as u32).rev().map(|i| 100 + i).chain([0; 3]).collect();
    assert_eq!(into.to_vec()?, expected, "{grid:?}");
    let (told, width) = (world.alloc::<u64>(1)?, 9);
    let mut rows = world.buffer::<u64>(at_most(400))?;
    world.launch(&stream, number_rows, grid, (rows.chunks_mut(width), told.view()))?;
    let expected: Vec<_> = (0..rows.len()).map(|i| ((i / width) as u64) << 32 | (i % width) as u64).collect();
    assert_eq!(rows.to_vec()?, expected, "{grid:?}");
    assert_eq!(told.to_vec()?, [rows.len().div_ceil(width) as u64]);
    Ok(())
}

/// A launch on one stream comes after those on others that write what it reads, or read what it writes; and so does the host.
fn one_after_the_other(world: &mut World) -> Result<(), Error> {
    let (writes, reads, tells) = (world.stream()?, world.stream()?, world.stream()?);
    let (go, me, len) = (world.alloc::<Signal>(1)?, world.rank(world.pe().raw())?, at_most(200));
    let (mut numbers, copy) = (buffer(world, vec![1_u64; len])?, world.alloc::<u64>(len)?);
    let (grid, turns) = (Grid::one(32), times(100_000));
    world.launch(&writes, add_late, grid, (&mut numbers, 10, go.view(), turns))?;
    world.launch(&reads, read_late, grid, (copy.view(), &numbers, go.view()))?;
    world.launch(&writes, add_late, grid, (&mut numbers, 100, go.view(), 0))?;
    world.notify(&tells, go.view().at(me).set(1))?;
    world.synchronize(&reads)?;
    assert_eq!(copy.to_vec()?, vec![11; len], "between the writes");
    world.launch(&writes, add_late, grid, (&mut numbers, 1000, go.view(), turns))?;
    assert_eq!(numbers.to_vec()?, vec![1111; len], "the host waits");
    world.launch(&reads, read_late, grid, (copy.view(), &numbers, go.view()))?;
    numbers.fill(5)?;
    world.synchronize(&reads)?;
    assert_eq!(copy.to_vec()?, vec![1111; len], "the host waits for those that read");
    Ok(())
}

/// What launches were lent is there until they are complete, whatever becomes of the buffer, the borrow and the stream meanwhile.
fn dropped_meanwhile(world: &mut World) -> Result<(), Error> {
    let (stream, tells) = (world.stream()?, world.stream()?);
    let (go, me, len) = (world.alloc::<Signal>(1)?, world.rank(world.pe().raw())?, at_most(3000));
    let copies: Vec<_> = (0..4).map(|_| world.alloc::<u64>(len)).collect::<Result<_, _>>()?;
    let late = world.stream()?;
    for (copy, seed) in copies.iter().zip(0_u64..) {
        let numbers = buffer(world, (0..len as u64).map(|i| i ^ seed << 32))?;
        let (on, view) = (if seed == 3 { &late } else { &stream }, numbers.slice(..)?);
        world.launch(on, read_late, Grid::one(32), (copy.view(), view, go.view()))?;
    }
    // What would be given the room of the others, if it were free.
    let others: Vec<_> = (0..8).map(|_| buffer(world, vec![u64::MAX; len])).collect::<Result<_, _>>()?;
    // What is forgotten keeps its hardware queue, of which all PEs here have 32.
    let late = if world.pe().index() == 0 {
        std::mem::forget(late);
        None
    } else {
        Some(late)
    };
    world.notify(&tells, go.view().at(me).set(1))?;
    world.synchronize(&stream)?;
    drop((others, late));
    // Nobody can wait for a stream that was forgotten, but for what it does.
    while copies[3].to_vec()?[len - 1] != (len - 1) as u64 ^ 3 << 32 {
        std::thread::yield_now();
    }
    for (copy, seed) in copies[..3].iter().zip(0_u64..) {
        let expected: Vec<_> = (0..len as u64).map(|i| i ^ seed << 32).collect();
        assert_eq!(copy.to_vec()?, expected, "buffer {seed}");
    }
    Ok(())
}

/// A graph has its buffers, also those that the program has no more, and its launches wait as others do.
fn in_a_graph(world: &World) -> Result<(), Error> {
    let (stream, other, len) = (world.stream()?, world.stream()?, at_most(64));
    let (x, mut y) = (buffer(world, vec![1.0; len])?, buffer(world, vec![0.0; len])?);
    let graph = world.capture(&stream, |stream| {
        world.launch(stream, axpy, Grid::one(32), (1.0, &x, &mut y))?;
        world.launch(stream, axpy, Grid::one(32), (2.0, &x, &mut y))
    })?;
    drop(x);
    let _others = (buffer(world, vec![9.0; len])?, buffer(world, vec![9.0; len])?);
    assert_eq!(y.to_vec()?, vec![0.0; len]);
    for _ in 0..5 {
        graph.launch(&stream)?;
    }
    let mut copy = buffer(world, vec![0.0; len])?;
    world.launch(&other, axpy, Grid::one(32), (1.0, &y, &mut copy))?;
    assert_eq!(copy.to_vec()?, vec![15.0; len]);
    y.fill(1.0)?;
    graph.launch(&stream)?;
    assert_eq!(y.to_vec()?, vec![4.0; len]);
    let refused = world.capture(&stream, |stream| stream.record_event().map(drop));
    assert!(matches!(refused.err(), Some(LaunchError::InCapture { call: "record_event", .. })));
    world.launch(&stream, axpy, Grid::one(32), (1.0, &copy, &mut y))?;
    assert_eq!(y.to_vec()?, vec![19.0; len]);
    Ok(())
}

/// Streams wait for events and for each other.
fn events(world: &mut World) -> Result<(), Error> {
    let (first, second, tells) = (world.stream()?, world.stream()?, world.stream()?);
    let (go, me) = (world.alloc::<Signal>(1)?, world.rank(world.pe().raw())?);
    let (words, copy) = (world.alloc::<u64>(1)?, world.alloc::<u64>(1)?);
    let one = buffer(world, [1_u64])?;
    let begun = first.record_event()?;
    world.launch(&first, read_late, Grid::one(1), (words.view(), &one, go.view()))?;
    let ended = first.record_event()?;
    second.wait(&ended)?;
    world.get(&second, copy.view(), words.view().at(me))?;
    begun.synchronize()?;
    assert!(begun.is_complete() && !ended.is_complete() && !second.is_idle());
    world.notify(&tells, go.view().at(me).set(1))?;
    world.synchronize(&second)?;
    assert_eq!(copy.to_vec()?, [1]);
    assert!(ended.is_complete() && begun.elapsed(&ended)? > std::time::Duration::ZERO);
    words.fill(0)?;
    world.launch(&first, read_late, Grid::one(1), (words.view(), &one, go.view()))?;
    second.join(&first)?;
    world.put(&second, copy.view().at(me), words.view())?;
    world.synchronize(&second)?;
    assert_eq!(copy.to_vec()?, [1]);
    Ok(())
}

/// Copies are in order with launches, and between all kinds of memory.
fn copies(world: &mut World) -> Result<(), Error> {
    let (stream, len) = (world.stream()?, at_most(777));
    let (symmetric, other) = (world.alloc::<f32>(len)?, world.alloc::<f32>(len)?);
    let (mut x, mut y) = (world.buffer::<f32>(len)?, world.buffer::<f32>(len)?);
    let mut values: Vec<f32> = (0..len).map(|i| i as f32).collect();
    world.copy(&stream, &mut x, &values[..])?;
    values.fill(-1.0);
    world.copy(&stream, symmetric.view(), &x)?;
    world.copy(&stream, other.view(), symmetric.view())?;
    world.copy(&stream, &mut y, other.view())?;
    world.launch(&stream, axpy, Grid::one(32), (1.0, &x, &mut y))?;
    world.copy(&stream, x.slice_mut(1..)?, y.slice(..len - 1)?)?;
    assert_eq!(y.to_vec()?, (0..len).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
    assert_eq!(x.to_vec()?[1..], y.to_vec()?[..len - 1]);
    let refused = world.copy(&stream, &mut y, &values[1..]);
    assert!(matches!(refused, Err(LaunchError::Lengths { .. })), "{refused:?}");
    let captured = world.capture(&stream, |stream| {
        world.copy(stream, symmetric.view(), &y)?;
        world.copy(stream, &mut x, symmetric.view())
    })?;
    y.fill(3.0)?;
    captured.launch(&stream)?;
    assert_eq!(x.to_vec()?, vec![3.0; len]);
    Ok(())
}

/// Copies to the host and from it go on while the host does, and their memory is there until they are complete, whatever becomes of it.
fn to_the_host(world: &mut World) -> Result<(), Error> {
    let (stream, tells, len) = (world.stream()?, world.stream()?, at_most(5000));
    let (told, go, me) = (world.alloc::<u64>(len)?, world.alloc::<Signal>(1)?, world.rank(world.pe().raw())?);
    let numbers: Vec<u64> = (0..len as u64).collect();
    // Before a kernel waits: to make the first ones may wait for it.
    let mut hosts: Vec<_> = (0..8).map(|_| world.host_buffer::<u64>(len)).collect::<Result<_, _>>()?;
    let (others, hosts) = hosts.split_at_mut(4);
    others.iter_mut().try_for_each(|other| other.fill(u64::MAX))?;
    let mut given = buffer(world, numbers.iter().copied())?;
    world.launch(&stream, read_late, Grid::one(32), (told.view(), &given, go.view()))?;
    for host in &mut *hosts {
        world.copy(&stream, host, told.view())?;
    }
    let copied = stream.record_event()?;
    for forgets in [false, true] {
        let host = std::mem::replace(&mut hosts[usize::from(forgets)], world.buffer(0)?);
        if forgets { std::mem::forget(host) } else { drop(host) }
    }
    assert!(!copied.is_complete(), "nobody has told the kernel to go on");
    world.notify(&tells, go.view().at(me).set(1))?;
    assert_eq!(hosts[2].to_vec()?, numbers, "the host waits for the copy");
    world.synchronize(&stream)?;
    for other in others {
        assert_eq!(other.to_vec()?, vec![u64::MAX; len]);
    }
    // Memory that is used again is zeroed.
    assert_eq!(world.host_buffer::<u64>(len)?.to_vec()?, vec![0; len]);
    hosts[3].write(0, &[7; 2])?;
    world.copy(&stream, &mut given, &hosts[3])?;
    // A kernel is lent it as any other.
    world.launch(&stream, sums_of_chunks, Grid::one(32), (hosts[3].chunks_mut(len),))?;
    assert_eq!((given.to_vec()?[..3].to_vec(), hosts[3].to_vec()?[0]), (vec![7, 7, 2], 0));
    assert!(world.host_buffer::<u64>(0)?.is_empty());
    Ok(())
}

/// As many blocks as are told run at once, and one more is refused where they wait.
fn occupancy(world: &mut World) -> Result<(), Error> {
    let (stream, told, go) = (world.stream()?, world.alloc::<u64>(1)?, world.alloc::<Signal>(1)?);
    let from = world.buffer::<u64>(0)?;
    world.notify(&stream, go.view().at(world.rank(world.pe().raw())?).set(1))?;
    let fits = world.occupancy(read_late, 64, 0)?;
    assert!(fits.waits && fits.resident_blocks > 0, "{fits:?}");
    assert!(fits.resident_blocks <= fits.blocks_per_multiprocessor * fits.multiprocessors, "{fits:?}");
    let launch = |blocks| world.launch(&stream, read_late, Grid::new(blocks, 64), (told.view(), &from, go.view()));
    let refused = launch(fits.resident_blocks + 1);
    assert!(matches!(refused, Err(LaunchError::NotCoresident { fits: all, .. }) if all == fits.resident_blocks));
    launch(fits.resident_blocks)?;
    world.synchronize(&stream)?;
    assert!(world.occupancy(axpy, 64, 0)?.blocks_per_multiprocessor > 0);
    let refused = [world.occupancy(axpy, 2048, 0), world.occupancy(axpy, 0, 0), world.occupancy(axpy, 32, 16)];
    let [
        Err(LaunchError::TooManyThreads { .. }),
        Err(LaunchError::EmptyGrid { .. }),
        Err(LaunchError::SharedMemory { .. }),
    ] = refused
    else {
        panic!("{refused:?}")
    };
    Ok(())
}

/// Addresses are those of elements: different, aligned, and in their order.
fn addresses(world: &mut World) -> Result<(), Error> {
    let (a, b) = (world.alloc::<u64>(100)?, world.buffer::<u64>(100)?);
    assert!(a.device_ptr() != 0 && b.device_ptr() != 0 && a.device_ptr().abs_diff(b.device_ptr()) >= 800);
    assert_eq!((a.device_ptr() % 8, b.device_ptr() % 16), (0, 0));
    assert_eq!(b.slice(10..)?.device_ptr(), b.device_ptr() + 80);
    // In a kernel the same, and what others have of it; null where only a proxy reaches it.
    let (stream, told) = (world.stream()?, world.alloc::<u64>(world.npes())?);
    world.run(&stream, tell_addresses, Grid::one(32), (a.view(), told.view()))?;
    let theirs = world.exchange("addresses", &a.device_ptr().to_string())?;
    for ((pe, told), theirs) in (0..).map(Pe::new).zip(told.to_vec()?).zip(theirs) {
        let expected = if world.is_direct(pe) { theirs } else { "0".to_owned() };
        assert_eq!(told.to_string(), expected, "PE {pe:?} from {:?}", world.pe());
    }
    Ok(())
}
