//! The transformer's loss in f64, forward only and as plainly as can be: its differences check the gradients of the kernel.

use congruent_example_kernels::transformer::{
    CONTEXT, EPSILON, EXPERT, EXPERTS, HEAD, INNER, LAYER, LAYERS, SEQUENCES, VOCABULARY, WIDTH,
};

type Rows = Vec<Vec<f64>>;

/// How far to go to either side of a parameter.
const STEP: f64 = 1e-5;

/// The derivative by a parameter of the mean loss of a micro-batch, whose sequences begin at `starts` in `text`.
pub(crate) fn derivative(parameters: &mut [f64], which: usize, text: &[u8], starts: &[u32]) -> f64 {
    let middle = parameters[which];
    let [above, below] = [middle + STEP, middle - STEP].map(|value| {
        parameters[which] = value;
        starts.iter().map(|&start| loss(parameters, &text[start as usize..][..=CONTEXT])).sum::<f64>()
    });
    parameters[which] = middle;
    (above - below) / (2.0 * STEP) / SEQUENCES as f64
}

/// The mean loss of a sequence.
fn loss(parameters: &[f64], text: &[u8]) -> f64 {
    let (layers, ends) = parameters.split_at(LAYERS * LAYER);
    let (tables, predictions) = ends.split_at((VOCABULARY + CONTEXT) * WIDTH);
    let table = |entry: usize| &tables[entry * WIDTH..][..WIDTH];
    let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    let mut stream: Rows = (0..CONTEXT).map(|i| sum(table(usize::from(text[i])), table(VOCABULARY + i))).collect();
    let add =
        |stream: &mut Rows, more: Rows| stream.iter_mut().zip(&more).for_each(|(row, more)| *row = sum(row, more));
    for layer in layers.chunks(LAYER) {
        let (attention, mixture) = layer.split_at(4 * WIDTH * WIDTH);
        let (input, output) = attention.split_at(3 * WIDTH * WIDTH);
        let answers = attend(&product(&norm(&stream), input));
        add(&mut stream, product(&answers, output));
        let (input, output) = mixture.split_at(WIDTH * (INNER + EXPERTS));
        let mut inner = product(&norm(&stream), input);
        for row in &mut inner {
            row.iter_mut().for_each(|x| *x = x.max(0.0).powi(2));
            let gates = row.split_off(INNER);
            row.iter_mut().enumerate().for_each(|(i, x)| *x *= gates[i / EXPERT]);
        }
        add(&mut stream, product(&inner, output));
    }
    let scores = product(&norm(&stream), predictions);
    let losses = scores.iter().zip(&text[1..]).map(|(row, &next)| -softmax(row)[usize::from(next)].ln());
    losses.sum::<f64>() / CONTEXT as f64
}

fn product(rows: &Rows, matrix: &[f64]) -> Rows {
    let columns = matrix.len() / rows[0].len();
    let number = |row: &[f64], j| row.iter().zip(matrix[j..].iter().step_by(columns)).map(|(a, b)| a * b).sum();
    rows.iter().map(|row| (0..columns).map(|j| number(row, j)).collect()).collect()
}

fn norm(rows: &Rows) -> Rows {
    let scale = |row: &[f64]| (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + f64::from(EPSILON)).sqrt();
    rows.iter().map(|row| row.iter().map(|x| x / scale(row)).collect()).collect()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = row.iter().map(|x| (x - most).exp()).sum();
    row.iter().map(|x| (x - most).exp() / total).collect()
}

/// What queries, keys and values give, which stand one behind the other in each row.
fn attend(rows: &Rows) -> Rows {
    let answer = |i: usize, column: usize| {
        let head = column / HEAD * HEAD;
        let dot = |key: &Vec<f64>| (0..HEAD).map(|d| rows[i][head + d] * key[WIDTH + head + d]).sum::<f64>();
        let scores: Vec<f64> = rows[..=i].iter().map(|key| dot(key) / (HEAD as f64).sqrt()).collect();
        softmax(&scores).iter().zip(rows).map(|(weight, value)| weight * value[2 * WIDTH + column]).sum()
    };
    (0..rows.len()).map(|i| (0..WIDTH).map(|column| answer(i, column)).collect()).collect()
}
