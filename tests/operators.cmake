if(ZERO_CPU_OPERATORS)
  zero_test(operators TORCH USES operators base FILES attention product gelu log_softmax_gradient)
endif()
