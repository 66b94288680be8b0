// Matrix products: packed strips and register tiles; few rows go to gemv.h.
#include "matmul.h"

#include "gemv.h"
#include "tile.h"

namespace torchmlx::ISA {
namespace {

// Steps of k in a block: its strips of b stay in the second-level cache, one strip of a in the
// first (14 x 512 words are 28 KiB), AMX's of 64 KiB in the second too.
constexpr int64_t STEPS = 512;

// Strips of b that a task packs: long reads where b's columns are contiguous.
constexpr int64_t STRIPS = 4;

// Words of packed a that are kept at a time, 8 MiB: a share of the last-level cache.
constexpr int64_t PACKED = 2 << 20;

// Rows of a task where its sums wait in memory between blocks of k.
constexpr int64_t TASK_ROWS = 32 * ROWS;

// Multiply-adds below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 16;

// Rounds sums[rows][columns] plus bias to out.
template <class T>
void finish(T* out, int64_t out_row, const float* sums, int64_t row, int64_t rows, int64_t columns,
            const T* bias) {
  for (int64_t r = 0; r < rows; ++r, out += out_row, sums += row) {
    int64_t c = 0;
    for (; c + W <= columns; c += W) {
      vf value = load(sums + c);
      store(out + c, bias ? value + load(bias + c) : value);
    }
    if (c < columns) {
      vf value = load(sums + c);
      store(out + c, bias ? value + load(bias + c, columns - c) : value, columns - c);
    }
  }
}

// Rows of a, in strips of nearly equal height, times all of b.
template <class T, class Words>
class Band {
  static constexpr int ROWS = Words::ROWS, COLUMNS = Words::COLUMNS;

 public:
  Band(const Matmul& p, const T* a, const T* b, T* out, int64_t rows)
      : p_(p), a_(a), b_(b), out_(out), rows_(rows),
        steps_(divide_up(p.k, Words::VALUES)), blocks_(max(1, divide_up(steps_, STEPS))),
        strips_(divide_up(rows, ROWS)) {}

  void compute() {
    bool small = rows_ * p_.n * steps_ < SMALL;
    int64_t last = blocks_ - 1;
    int64_t words = last * row_words<Words>(STEPS) + row_words<Words>(steps_in(last));
    packed_ = static_cast<uint32_t*>(scratch(A, 4 * rows_ * words));
    parallel(strips_, small ? strips_ : 4, [&](int64_t begin, int64_t end) {
      for (int64_t strip = begin; strip < end; ++strip) {
        pack_a(strip);
      }
    });
    choose_tasks();
    int64_t tasks = row_tasks_ * column_tasks_;
    parallel(tasks, small ? tasks : 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        run(task % row_tasks_, task / row_tasks_);
      }
    });
  }

 private:
  int64_t first_row(int64_t strip) const { return rows_ * strip / strips_; }
  int64_t steps_in(int64_t block) const {
    return divide_up(min(STEPS, steps_ - block * STEPS), Words::UNIT) * Words::UNIT;
  }
  int64_t values_in(int64_t block) const {
    return min(STEPS * Words::VALUES, p_.k - block * STEPS * Words::VALUES);
  }
  // Blocks of k follow one another, each with all its strips.
  uint32_t* packed(int64_t block, int64_t strip) const {
    return packed_ + block * row_words<Words>(STEPS) * rows_ +
           first_row(strip) * row_words<Words>(steps_in(block));
  }

  void pack_a(int64_t strip) {
    int64_t row = first_row(strip), height = first_row(strip + 1) - row;
    for (int64_t block = 0; block < blocks_; ++block) {
      const T* from = a_ + row * p_.a_row + block * STEPS * Words::VALUES * p_.a_k;
      pack_rows<Words>(packed(block, strip), height, from, p_.a_row, p_.a_k, values_in(block),
                       steps_in(block));
    }
  }

  // Wide tasks, unless that leaves a thread without work; then narrow ones, then fewer rows.
  void choose_tasks() {
    int64_t wanted = 3 * threads(), all = divide_up(p_.n, COLUMNS);
    columns_ = STRIPS;
    while (columns_ > 1 && divide_up(all, columns_) < wanted) {
      columns_ /= 2;
    }
    column_tasks_ = divide_up(all, columns_);
    row_tasks_ = min(strips_, max(divide_up(rows_, TASK_ROWS), wanted / column_tasks_));
  }

  void run(int64_t row_task, int64_t column_task) {
    int64_t begin = strips_ * row_task / row_tasks_, end = strips_ * (row_task + 1) / row_tasks_;
    int64_t column = column_task * columns_ * COLUMNS;
    int64_t columns = min(columns_ * COLUMNS, p_.n - column);
    int64_t strips = divide_up(columns, COLUMNS), row = strips * COLUMNS;
    auto* packed_b = static_cast<uint32_t*>(scratch(B, 4 * STEPS * row));
    auto* sums = static_cast<float*>(
        scratch(SUMS, 4 * row * (first_row(end) - first_row(begin))));
    for (int64_t block = 0; block < blocks_; ++block) {
      int64_t steps = steps_in(block);
      pack_b(packed_b, block, column, columns);
      for (int64_t strip = begin; strip < end; ++strip) {
        int64_t top = first_row(strip), height = first_row(strip + 1) - top;
        float* here = sums + (top - first_row(begin)) * row;
        multiply_strips<Words>(height, steps, packed(block, strip), packed_b, strips, here, row,
                               block > 0);
        if (block == blocks_ - 1) {
          const T* bias = p_.bias ? static_cast<const T*>(p_.bias) + column : nullptr;
          finish(out_ + top * p_.n + column, p_.n, here, row, height, columns, bias);
        }
      }
    }
  }

  // Short pieces of k over all strips, so that rows of b are read in one go where they are long.
  void pack_b(uint32_t* to, int64_t block, int64_t column, int64_t columns) {
    int64_t steps = steps_in(block), values = values_in(block);
    const T* from = b_ + column * p_.b_column + block * STEPS * Words::VALUES * p_.b_k;
    int64_t piece = p_.b_column == 1 ? 16 * Words::VALUES : values;
    for (int64_t k = 0; k < values; k += piece) {
      for (int64_t c = 0; c < columns; c += COLUMNS) {
        pack<Words>(to + c * steps + k / Words::VALUES * COLUMNS, COLUMNS,
                    min(COLUMNS, columns - c), from + c * p_.b_column + k * p_.b_k, p_.b_column,
                    p_.b_k, min(piece, values - k));
      }
    }
    for (int64_t c = 0; c < columns; c += COLUMNS) {
      end_strip<Words>(to + c * steps, values, steps);
    }
  }

  const Matmul& p_;
  const T* a_;
  const T* b_;
  T* out_;
  int64_t rows_, steps_, blocks_, strips_;
  int64_t columns_ = 1, column_tasks_ = 1, row_tasks_ = 1;
  uint32_t* packed_ = nullptr;
};

template <class T, class Words>
void multiply(const Matmul& p, const T* a, const T* b, T* out) {
  if (few_rows(p)) {
    FewRows<T, typename WordsOf<T>::Type>(p, a, b, out).compute();
    return;
  }
  int64_t steps = max(1, divide_up(p.k, Words::VALUES));
  int64_t height = max(16 * Words::ROWS, PACKED / steps / Words::ROWS * Words::ROWS);
  for (int64_t row = 0; row < p.m; row += height) {
    Band<T, Words>(p, a + row * p.a_row, b, out + row * p.n, min(height, p.m - row)).compute();
  }
}

template <class T, class Words>
void multiply_all(const Matmul& p) {
  auto one = [&](int64_t i) {
    multiply<T, Words>(p, static_cast<const T*>(p.a) + p.a_starts[i],
                       static_cast<const T*>(p.b) + p.b_starts[i],
                       static_cast<T*>(p.out) + i * p.m * p.n);
  };
  // Many small products: whole ones for each thread; few large ones: all threads on each.
  if (p.batch >= 2 * threads()) {
    int64_t work = max(1, p.m * p.n * p.k);
    parallel(p.batch, max(1, SMALL / work), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        one(i);
      }
    });
  } else {
    for (int64_t i = 0; i < p.batch; ++i) {
      one(i);
    }
  }
}

}  // namespace

void matmul(const Matmul& p) {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    with_words<T>([&](auto words) { multiply_all<T, decltype(words)>(p); });
  });
}

}  // namespace torchmlx::ISA
