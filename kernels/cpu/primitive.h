// What the MLX primitives of this extension share. The only headers that know MLX are this one and
// the files that include it.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "isa.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace torchmlx {

namespace mx = mlx::core;

// The type of x, if the kernels compute in it.
std::optional<Type> type_of(const mx::array& x);

// The stream of the caller's thread for the CPU.
mx::Stream cpu_stream();

void allocate(mx::array& out);

// Runs on the CPU alone, lazily, on its stream's thread. Gradients are the registry's business.
class Native : public mx::Primitive, public std::enable_shared_from_this<Native> {
 public:
  Native() : mx::Primitive(cpu_stream()) {}

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(name()) + " runs on the CPU only");
  }

  // One call for each index. The registry has a better rule, which takes the place of these calls
  // before they run; MLX asks for them all the same (0.32.4).
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                           const std::vector<int>& axes) override;

 protected:
  // Runs after the tasks that compute the inputs. It may hold pointers into inputs and outputs,
  // which MLX keeps until then.
  template <class F>
  void dispatch(F&& task) {
    mx::cpu::get_command_encoder(stream()).dispatch(std::forward<F>(task));
  }

  // x, or a row-contiguous copy of it that exists when later tasks run.
  mx::array contiguous(const mx::array& x);
};

// The stride at which all rows of x (its axes but the last `inner`) follow one another, if they do.
std::optional<int64_t> row_stride(const mx::array& x, int inner);

}  // namespace torchmlx
