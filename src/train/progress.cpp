#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "zero/plan_report.h"

namespace zero::training {
namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 160> text{};
  const int size = std::snprintf(text.data(), text.size(), pattern, values...);
  return {text.data(), static_cast<size_t>(std::clamp(size, 0, static_cast<int>(text.size()) - 1))};
}

int columns_of(std::FILE* out) {
  struct winsize size {};
  constexpr int kUsual = 80;
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto all = static_cast<long long>(std::llround(seconds));
  if (all >= 3600) return format("%lldh%02lldm", all / 3600, all / 60 % 60);
  if (all >= 60) return format("%lldm%02llds", all / 60, all % 60);
  return format("%llds", all);
}

Progress::Progress(std::FILE* out, int64_t first_step, int64_t last_step, int64_t interval)
    : out_(out),
      terminal_(out != nullptr && ::isatty(::fileno(out)) == 1),
      first_step_(first_step),
      last_step_(last_step),
      interval_(std::max<int64_t>(1, interval)),
      begin_(Clock::now()),
      shown_at_(begin_),
      shown_step_(first_step) {}

Progress::~Progress() {
  if (out_ != nullptr && drawn_) std::fputs("\n", out_);
  if (out_ != nullptr) std::fflush(out_);
}

std::string Progress::line(const StepReport& report) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  const auto done = static_cast<double>(report.step - first_step_);
  const double eta = elapsed / done * static_cast<double>(last_step_ - report.step);
  std::string text =
      format("step %lld/%lld  loss %.4f  lr %.2e  grad norm %.3f  ", static_cast<long long>(report.step),
             static_cast<long long>(last_step_), report.loss, report.lr, report.grad_norm);
  text += human_count(std::llround(tokens_per_s_)) + " tokens/s  memory " +
          human_bytes(report.resident_bytes) + "  ETA " + duration_text(eta);
  if (report.skipped) text += "  skipped: the gradient is not finite";
  return text;
}

void Progress::draw(const std::string& text, int64_t step) {
  constexpr int kBar = 20;
  const int full = static_cast<int>(kBar * step / std::max<int64_t>(1, last_step_));
  std::string line = "[" + std::string(static_cast<size_t>(full), '=') +
                     std::string(static_cast<size_t>(kBar - full), ' ') + "] " + text;
  const auto most = static_cast<size_t>(std::max(1, columns_of(out_) - 1));
  if (line.size() > most) line.resize(most);
  std::fputs(("\r" + line + "\x1b[K").c_str(), out_);
  std::fflush(out_);
  drawn_ = true;
}

void Progress::step(const StepReport& report) {
  if (out_ == nullptr) return;
  constexpr double kRedrawSeconds = 0.1;
  const auto now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_at_).count();
  const bool last = report.step == last_step_, first = report.step == first_step_ + 1;
  const bool due = terminal_ ? since >= kRedrawSeconds : report.step % interval_ == 0 || report.skipped;
  if (!due && !first && !last) return;
  // Steps are equally large, so this step's tokens stand for all since the last line.
  const double per_step = report.tokens_per_s * report.step_s;
  tokens_per_s_ = per_step * static_cast<double>(report.step - shown_step_) / std::max(since, 1e-9);
  shown_at_ = now;
  shown_step_ = report.step;
  if (terminal_) {
    draw(line(report), report.step);
    return;
  }
  std::fputs((line(report) + "\n").c_str(), out_);
  std::fflush(out_);
}

void Progress::note(const std::string& text) {
  if (out_ == nullptr) return;
  std::fputs(((drawn_ ? "\r" : "") + text + (drawn_ ? "\x1b[K" : "") + "\n").c_str(), out_);
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace zero::training
