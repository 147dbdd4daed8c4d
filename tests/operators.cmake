zero_test(operators TORCH USES operators FILES attention product log_softmax)
